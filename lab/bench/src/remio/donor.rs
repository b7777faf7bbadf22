//! The process whose memory is read and written.

use super::pages::{Pages, Version, Written};
use crate::experiments::ExperimentError;
use crate::peer::{PairPlan, Peer, PeerError, PeerPlace, PeerTask, receive, send};
use farcall::select::{SelectedNic, Selection};
use farcall_io::Target;
use farcall_link::bootstrap::QpInfo;
use farcall_link::{Region, RemoteRegion};
use farcall_verbs::Access;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Task that grants a region, sleeps while the region is read and written, and reports its content at the end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Donor {
    selection: Selection,
    pages: Pages,
    connections: usize,
}

/// Region that a donor grants, and its queue pairs.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Card {
    pub(super) qps: Vec<QpInfo>,
    pub(super) grant: RemoteRegion,
}

/// Sent when the donor's queue pairs are connected.
#[derive(Debug, Serialize, Deserialize)]
struct Connected;

/// Requests a report of the content of the donor's memory.
#[derive(Debug, Serialize, Deserialize)]
struct Stop;

/// Content of a donor's memory.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    written: u64,
    wrong: Option<u64>,
}

impl PeerTask for Donor {
    const KIND: &'static str = "remio-donor";

    fn run(self, place: PeerPlace) -> Result<(), PeerError> {
        self.donate(&place).map_err(|error| PeerError::Part(error.to_string()))
    }
}

/// Maximum number of queue pairs of a donor.
const CONNECTIONS_MAX: usize = 1024;

impl Donor {
    /// Rejects tasks that no measurement requests.
    fn check(&self) -> Result<(), ExperimentError> {
        self.pages.check()?;
        match self.connections {
            1..=CONNECTIONS_MAX => Ok(()),
            many => Err(format!("a donor has 1 to {CONNECTIONS_MAX} queue pairs, not {many}").into()),
        }
    }

    fn donate(&self, place: &PeerPlace) -> Result<(), ExperimentError> {
        let Self { selection, pages, connections } = self;
        // The task may have been sent by another host, so it is checked again.
        self.check()?;
        let chosen = place.nic(selection).open()?;
        let nic = chosen.nic.clone();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = Arc::new(Region::alloc(&*nic.pd, pages.offset(pages.count), access)?);
        let mut page_bytes = vec![0; pages.len_bytes];
        for page in 0..pages.count {
            pages.fill(page, Version::Granted, &mut page_bytes);
            memory.copy_in(pages.offset(page), &page_bytes);
        }
        let mut target = Target::new(&nic, Arc::clone(&memory), *connections)?;
        place.ready()?;
        let control = place.control();
        send(control, &Card { qps: target.infos(), grant: target.grant() })?;
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

/// Starts donors, each with the same number of queue pairs, on the server core; they sleep.
pub(super) fn start(
    chosen: &SelectedNic,
    plan: &PairPlan,
    pages: Pages,
    count: u32,
    connections: usize,
) -> Result<Vec<Peer>, PeerError> {
    let donor = Donor { selection: chosen.selection.clone(), pages, connections };
    (0..count).map(|_| plan.start(&donor)).collect()
}

/// Connects queue pairs with those of the donor.
pub(super) fn meet(
    donor: &Peer,
    connect: impl FnOnce(&Card) -> Result<Vec<QpInfo>, ExperimentError>,
) -> Result<(), ExperimentError> {
    let infos = connect(&receive(donor.control())?)?;
    send(donor.control(), &infos)?;
    let Connected = receive(donor.control())?;
    Ok(())
}

/// Compares the donor's memory with the completed WRITEs. Called when no request is outstanding.
pub(super) fn check(donor: &Peer, written: &Written) -> Result<(), ExperimentError> {
    send(donor.control(), &Stop)?;
    let found: Found = receive(donor.control())?;
    if let Some(page) = found.wrong {
        return Err(format!("wrong bytes: page {page} of the donor holds what does not belong there").into());
    }
    if found.written != written.count() {
        let (found, wanted) = (found.written, written.count());
        return Err(format!("wrong bytes: the donor has {found} written pages; {wanted} were written").into());
    }
    Ok(())
}
