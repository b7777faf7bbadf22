//! The process whose memory is read and written.

use super::pages::{Pages, Version, Written};
use crate::experiments::ExperimentError;
use crate::peer::{PairPlan, Peer, PeerError, PeerPlace, PeerTask, receive, send};
use farcall::select::{SelectedNic, Selection};
use farcall_io::Target;
use farcall_link::bootstrap::QpInfo;
use farcall_link::{Region, RemoteRegion};
use farcall_verbs::{Access, with_sources};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Task that grants a region, sleeps while the region is read and written, and reports its content at the end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MemoryServer {
    selection: Selection,
    pages: Pages,
    connections: usize,
}

/// Region that a memory server grants, and its queue pairs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MemoryServerInfo {
    pub(super) qps: Vec<QpInfo>,
    pub(super) grant: RemoteRegion,
}

/// Sent when the memory server's queue pairs are connected.
#[derive(Debug, Serialize, Deserialize)]
struct Connected;

/// Requests a report of the content of the memory server's memory.
#[derive(Debug, Serialize, Deserialize)]
struct Stop;

/// Content of a memory server's memory.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    written: u64,
    wrong: Option<u64>,
}

impl PeerTask for MemoryServer {
    const KIND: &'static str = "remio-memory-server";

    fn run(self, place: PeerPlace) -> Result<(), PeerError> {
        self.serve(&place).map_err(|error| PeerError::Part(with_sources(&*error)))
    }
}

/// Maximum number of queue pairs of a memory server.
const CONNECTIONS_MAX: usize = 1024;

impl MemoryServer {
    /// Rejects tasks that no measurement requests.
    fn check(&self) -> Result<(), ExperimentError> {
        self.pages.check()?;
        match self.connections {
            1..=CONNECTIONS_MAX => Ok(()),
            many => Err(format!("a memory server has 1 to {CONNECTIONS_MAX} queue pairs, not {many}").into()),
        }
    }

    fn serve(&self, place: &PeerPlace) -> Result<(), ExperimentError> {
        let Self { selection, pages, connections } = self;
        // The task may have been sent by another host, so it is checked again.
        self.check()?;
        let chosen = place.nic(selection).open()?;
        let nic = chosen.nic.clone();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = Arc::new(Region::alloc(&**nic.pd(), pages.offset(pages.count), access)?);
        let mut page_bytes = vec![0; pages.len_bytes];
        for page in 0..pages.count {
            pages.fill(page, Version::Granted, &mut page_bytes);
            memory.copy_in(pages.offset(page), &page_bytes);
        }
        let mut target = Target::new(&nic, Arc::clone(&memory), *connections)?;
        place.ready()?;
        let control = place.control();
        send(control, &MemoryServerInfo { qps: target.infos(), grant: target.grant() })?;
        target.connect(&receive::<Vec<QpInfo>>(control)?)?;
        send(control, &Connected)?;
        if receive::<Stop>(control).is_err() {
            // The other end has exited, so there is no report.
            return Ok(());
        }
        let mut found = Found { written: 0, wrong: None };
        for page in 0..pages.count {
            memory.copy_out(pages.offset(page), &mut page_bytes);
            match pages.version(page, &page_bytes) {
                Some(Version::Written) => found.written += 1,
                Some(Version::Granted) => {}
                None => found.wrong = found.wrong.or(Some(page)),
            }
        }
        send(control, &found)?;
        // The queue pairs are retained until the other end has destroyed its own, which may still wait for an
        // acknowledgement.
        let _ = receive::<Stop>(control);
        Ok(())
    }
}

/// Starts memory servers, each with the same number of queue pairs, on the server core; they sleep.
pub(super) fn start(
    chosen: &SelectedNic,
    plan: &PairPlan,
    pages: Pages,
    count: u32,
    connections: usize,
) -> Result<Vec<Peer>, PeerError> {
    let server = MemoryServer { selection: chosen.selection.clone(), pages, connections };
    (0..count).map(|_| plan.start(&server)).collect()
}

/// Connects queue pairs with those of the memory server.
pub(super) fn connect_to(
    server: &Peer,
    connect: impl FnOnce(&MemoryServerInfo) -> Result<Vec<QpInfo>, ExperimentError>,
) -> Result<(), ExperimentError> {
    let infos = connect(&receive(server.control())?)?;
    send(server.control(), &infos)?;
    let Connected = receive(server.control())?;
    Ok(())
}

/// Compares the memory server's memory with the completed WRITEs. Called when no request is outstanding.
pub(super) fn check(server: &Peer, written: &Written) -> Result<(), ExperimentError> {
    send(server.control(), &Stop)?;
    let found: Found = receive(server.control())?;
    if let Some(page) = found.wrong {
        return Err(format!(
            "wrong bytes: page {page} of the memory server holds what does not belong there"
        )
        .into());
    }
    if found.written != written.count() {
        let (found, wanted) = (found.written, written.count());
        return Err(format!(
            "wrong bytes: the memory server has {found} written pages; {wanted} were written"
        )
        .into());
    }
    Ok(())
}
