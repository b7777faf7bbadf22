//! GETs of a store that its clients READ by themselves (`farcall_kv::pilaf`): how fast, and how many READs each takes.

use super::ExperimentError;
use super::stage::Stage;
use crate::measure::{RoundTrips, pin_thread, ping_pong};
use crate::peer::{Peer, PeerError, PeerPlace, PeerTask, receive, send};
use farcall_kv::pilaf::{PilafClient, PilafConfig, serve};
use farcall_providers::{Chosen, Selection};
use farcall_rpc::Server;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::net::SocketAddr;

/// Entries of the index, and how many of them are used: three quarters, as in the papers.
const ENTRIES: u32 = 1 << 12;
const KEYS: u32 = ENTRIES / 4 * 3;
const KEY_LEN_BYTES: usize = 16;
const VALUE_LEN_BYTES: usize = 32;

/// What a run gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GetSample {
    /// One GET after the other.
    pub(crate) gets: RoundTrips,
    pub(crate) reads_per_get: f64,
}

/// A filled store in another process, and a client of it.
pub(crate) struct PilafStand {
    _peer: Peer,
    client: PilafClient,
}

/// Serves an empty store, until the other end is gone.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PilafServer {
    selection: Selection,
}

impl PeerTask for PilafServer {
    const KIND: &'static str = "pilaf-server";

    fn run(self, place: PeerPlace) -> Result<(), PeerError> {
        let part = |error: &dyn std::fmt::Display| PeerError::Part(error.to_string());
        let chosen = place.nic(&self.selection).choose().map_err(|error| part(&error))?;
        let config = PilafConfig::default().entries(ENTRIES);
        let address = SocketAddr::new(place.control().local_ip(), 0).to_string();
        let server = serve(Server::builder().address(address), &*chosen.provider, config)
            .map_err(|error| part(&error))?;
        place.ready()?;
        send(place.control(), &server.address().to_string())?;
        // Silent until its end.
        let _ = place.control().read(&mut [0]);
        Ok(())
    }
}

impl PilafStand {
    /// Starts a server on the stage's server core, and fills it.
    ///
    /// # Errors
    /// When it cannot be started, reached or filled.
    pub(crate) fn open(stage: &Stage, chosen: &Chosen) -> Result<Self, ExperimentError> {
        pin_thread(stage.client_core)?;
        let order = PilafServer { selection: chosen.selection.clone() };
        let peer = stage.pair_plan().start(&order)?;
        let address: String = receive(peer.control())?;
        let mut client = PilafClient::connect(&*chosen.provider, &address, PilafClient::options())?;
        for number in 0..KEYS {
            client.put(&key(number), &value(number))?;
        }
        Ok(Self { _peer: peer, client })
    }

    /// GETs of keys chosen evenly, one after the other; every value is checked.
    ///
    /// # Errors
    /// When a GET fails, or brings another value.
    pub(crate) fn get(&mut self, stage: &Stage, repetition: u32) -> Result<GetSample, ExperimentError> {
        pin_thread(stage.client_core)?;
        let mut random = Pcg64::seed_from_u64(stage.seed.wrapping_add(repetition.into()));
        let before = self.client.counters();
        let mut found = Vec::with_capacity(VALUE_LEN_BYTES);
        let gets = ping_pong(stage.warm_up, stage.duration, |_| {
            let number = random.random_range(0..KEYS);
            found.clear();
            if self.client.get(&key(number), &mut found)? && found == value(number) {
                Ok(())
            } else {
                Err(ExperimentError::from(format!("the value of key {number} is wrong or missing")))
            }
        })?;
        let after = self.client.counters();
        let reads_per_get = (after.reads - before.reads) as f64 / (after.gets - before.gets).max(1) as f64;
        Ok(GetSample { gets, reads_per_get })
    }
}

fn key(number: u32) -> [u8; KEY_LEN_BYTES] {
    let mut key = *b"key.............";
    key[4..8].copy_from_slice(&number.to_le_bytes());
    key
}

fn value(number: u32) -> [u8; VALUE_LEN_BYTES] {
    [number as u8; VALUE_LEN_BYTES]
}
