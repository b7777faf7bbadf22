//! What a process has once: its memory regions, the peers that it met, and one blocking service thread.

use std::any::Any;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use farcall_shm::fork::Generation;
use farcall_shm::{Mutex, fence};
use farcall_verbs::{Error, Gid, Mtu, Result};

use super::addresses::{WayChoice, is_of_this_host, require_device, require_peer, whole_mtu_of};
use super::fork;
use super::gid_table::{Entry, GidTable};
use super::gids::{GID_TABLE_LEN, gid_table, is_ip_address};
use super::meeting::Meeting;
use super::peer::Peer;
use super::regions::RegionTable;
use super::rendezvous::{block_of, gid, is_met_here, is_told_here};
use super::service::Service;

/// The one instance of this program, of the type that its way has for it.
pub(crate) static INSTANCE: Mutex<Option<Arc<dyn Any + Send + Sync>>> = Mutex::new(None);

pub(crate) struct Process {
    born: Generation,
    /// Tells this process from all others.
    pub(crate) instance: u64,
    /// The entries of the port's table that lead to this host; the first is of the rendezvous space.
    pub(crate) gids: [Gid; GID_TABLE_LEN],
    way: WayChoice,
    /// See [`Process::whole_mtu`].
    whole_mtu: Option<Mtu>,
    /// The program has asked for one of them, to tell it others, or sends by RoCEv2 alone.
    expects_foreigners: AtomicBool,
    /// The port's table.
    pub(crate) table: GidTable,
    pub(crate) regions: RegionTable,
    pub(crate) service: Service,
    /// By block of queue pair numbers.
    peers: Mutex<HashMap<u32, Arc<Peer>>>,
    /// By block; whoever wants to meet a process keeps its meeting.
    meetings: Mutex<HashMap<u32, Weak<Meeting>>>,
    /// With the process that was last judged: whoever connects to it goes on with the same socket.
    judged: Mutex<Option<Arc<Meeting>>>,
    next_number: AtomicU32,
}

/// The port's table without an opened device.
///
/// # Errors
/// If there is no place for rendezvous sockets, or the choice of the way cannot be understood.
pub(crate) fn gid_entries() -> Result<Vec<Entry>> {
    Ok(GidTable::new(WayChoice::configured()?, &gid_table(gid()?)).entries())
}

impl Process {
    /// To be put into [`INSTANCE`], whose lock the caller holds.
    pub(crate) fn new() -> Result<Self> {
        fork::install();
        fence::asymmetric();
        let (gids, way) = (gid_table(gid()?), WayChoice::configured()?);
        let table = GidTable::new(way, &gids);
        // Once: both ends of a connection go by what this one has told.
        let entries = table.entries();
        let there = entries.iter().filter(|entry| table.has_address(entry.gid));
        let whole_mtu = there.filter_map(|entry| whole_mtu_of(&entry.netdev)).min();
        Ok(Self {
            born: Generation::current(),
            instance: RandomState::new().build_hasher().finish(),
            gids,
            way,
            whole_mtu,
            expects_foreigners: AtomicBool::new(way == WayChoice::Net),
            table,
            regions: RegionTable::new()?,
            service: Service::new()?,
            peers: Mutex::default(),
            meetings: Mutex::default(),
            judged: Mutex::default(),
            next_number: AtomicU32::new(1),
        })
    }

    /// Whether it came to us by a fork: then its threads are not here.
    pub(crate) fn is_inherited(&self) -> bool {
        self.born.is_inherited()
    }

    /// # Errors
    /// If it came to us by a fork.
    pub(crate) fn require_here(&self, operation: &'static str) -> Result<()> {
        self.born.require_current(operation, "the opened device")
    }

    /// Whether it is an address by which other hosts reach us.
    pub(crate) fn is_address(&self, address: Ipv6Addr) -> bool {
        self.table.has_address(Gid(address.octets()))
    }

    /// Whether an entry of the port's table leads to us, also after addresses of this host have changed.
    pub(crate) fn is_reached_by(&self, gid: Gid) -> bool {
        let address = Ipv6Addr::from(gid.0);
        self.gids.contains(&gid) || self.is_address(address) && is_of_this_host(address)
    }

    /// The longest MTU with which packets go in one piece through every network device that may be used.
    pub(crate) fn whole_mtu(&self) -> Option<Mtu> {
        self.whole_mtu
    }

    /// The MTU of the port, which programs take for their queue pairs. Where each packet goes through a network device
    /// it is [`Process::whole_mtu`]; shared memory takes the longest.
    pub(crate) fn port_mtu(&self) -> Mtu {
        match self.way {
            WayChoice::Net => self.whole_mtu.unwrap_or(Mtu::Mtu4096),
            WayChoice::Auto | WayChoice::Host => Mtu::Mtu4096,
        }
    }

    /// The program asks for an entry of the port's table: whoever is told an address of ours may send datagrams to it.
    pub(crate) fn show_gid(&self, gid: Gid) {
        if self.is_address(Ipv6Addr::from(gid.0)) {
            self.expects_foreigners.store(true, Ordering::Relaxed);
        }
    }

    /// Whether other hosts may send datagrams to us that we have sent none.
    pub(crate) fn expects_foreigners(&self) -> bool {
        self.expects_foreigners.load(Ordering::Relaxed)
    }

    /// Refuses where `FARCALL_WAY` forbids other hosts.
    ///
    /// # Errors
    /// If it does.
    pub(crate) fn require_abroad(&self, operation: &'static str) -> Result<()> {
        match self.way {
            WayChoice::Host => {
                Err(Error::invalid(operation, "FARCALL_WAY=host forbids other hosts".to_owned()))
            }
            WayChoice::Auto | WayChoice::Net => Ok(()),
        }
    }

    /// Whether the path of datagrams leads to another host, rather than to this one.
    ///
    /// # Errors
    /// If it leads nowhere, with the remedy.
    pub(crate) fn leads_datagrams_away(&self, operation: &'static str, dgid: Gid) -> Result<bool> {
        let is_away = match self.way {
            WayChoice::Net => is_ip_address(dgid),
            WayChoice::Auto => {
                is_ip_address(dgid) && !self.gids.contains(&dgid) && !self.is_address_here(dgid)
            }
            WayChoice::Host => false,
        };
        if is_away {
            return Ok(true);
        }
        self.require_reachable(operation, dgid).map(|()| false)
    }

    /// Whether a path leads to another host, rather than to this one.
    ///
    /// # Errors
    /// If it leads nowhere, with the remedy.
    pub(crate) fn leads_away(&self, operation: &'static str, dgid: Gid, qpn: u32) -> Result<bool> {
        if self.way == WayChoice::Net && is_ip_address(dgid) {
            return Ok(true);
        }
        if self.way == WayChoice::Auto && is_ip_address(dgid) && !self.gids.contains(&dgid) {
            // An address of this host, loopback addresses included, or of one whose processes we meet: a container's.
            let is_here = self.stays_here(Ipv6Addr::from(dgid.0));
            return match is_met_here(qpn, dgid, is_here) {
                true => Ok(false),
                false if is_here => Err(self.unreachable(operation, dgid)),
                false => Ok(true),
            };
        }
        self.require_reachable(operation, dgid).map(|()| false)
    }

    /// Whether requests to a queue pair go through shared memory, or by RoCEv2 because that was chosen.
    pub(crate) fn carries_to(&self, dgid: Gid, qpn: u32) -> bool {
        self.way == WayChoice::Net || matches!(self.leads_away("find a way", dgid, qpn), Ok(false))
    }

    /// Whether the way to another host may be taken at all, by whatever protocol.
    ///
    /// # Errors
    /// If the environment forbids other hosts, this one, or the device that leads there.
    pub(crate) fn check_connection(&self, operation: &'static str, own: IpAddr, peer: IpAddr) -> Result<()> {
        if self.way == WayChoice::Host {
            return Err(Error::invalid(
                operation,
                format!("{peer} is another host, which FARCALL_WAY=host forbids"),
            ));
        }
        let [own, peer] = [own, peer].map(|address| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        });
        require_peer(operation, peer)?;
        require_device(operation, own, self.is_address(own))
    }

    /// Returns whether packets for an address stay on this host: it is in the port's table, or another of ours.
    fn stays_here(&self, address: Ipv6Addr) -> bool {
        self.is_address(address) || is_of_this_host(address)
    }

    /// Returns whether `FARCALL_WAY` forces RoCEv2, also to this host.
    pub(crate) fn forces_roce(&self) -> bool {
        self.way == WayChoice::Net
    }

    /// Whether some process that we meet has this address.
    fn is_address_here(&self, dgid: Gid) -> bool {
        self.way == WayChoice::Auto && (self.stays_here(Ipv6Addr::from(dgid.0)) || is_told_here(dgid))
    }

    /// Whether a path leads to this host.
    ///
    /// # Errors
    /// If not, with the remedy.
    pub(crate) fn require_reachable(&self, operation: &'static str, dgid: Gid) -> Result<()> {
        if self.gids.contains(&dgid) || self.is_address_here(dgid) {
            return Ok(());
        }
        Err(self.unreachable(operation, dgid))
    }

    fn unreachable(&self, operation: &'static str, dgid: Gid) -> Error {
        let what = format!(
            "GID {dgid} is not of this user on this host ({}): shared memory does not reach it (containers share a \
             directory through FARCALL_SOCKET_DIR, users also a group through FARCALL_GROUP), and it is no address of \
             another host, or FARCALL_WAY=host forbids those",
            self.gids[0]
        );
        Error::invalid(operation, what)
    }

    /// A number for a protection domain, a completion queue or a shared receive queue: no two of them have the same.
    pub(crate) fn next_number(&self) -> u32 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// The process behind a queue pair number, met at first use. `None`: it has not answered yet; ask again, with the
    /// same `meeting`, which is kept as long as somebody wants to meet the process. Never waits.
    ///
    /// # Errors
    /// If there is none, or it may not connect to us nor we to it: that is known at once, and before anything else.
    pub(crate) fn peer_of(&self, qpn: u32, meeting: &mut Option<Arc<Meeting>>) -> Result<Option<Arc<Peer>>> {
        let block = block_of(qpn);
        let peer = match self.known(block) {
            Some(peer) => Ok(Some(peer)),
            None => meeting.get_or_insert_with(|| self.meeting_of(block)).proceed(self, block),
        };
        if !matches!(peer, Ok(None)) {
            *meeting = None;
        }
        peer
    }

    /// Whether the process behind a queue pair number may connect to us and we to it. Never waits.
    ///
    /// # Errors
    /// If not, or if there is none.
    pub(crate) fn judge_owner(&self, qpn: u32) -> Result<()> {
        let mut meeting = None;
        self.peer_of(qpn, &mut meeting)?;
        *self.judged.lock() = meeting;
        Ok(())
    }

    /// The meeting with the owner of a block that is under way, or a new one.
    fn meeting_of(&self, block: u32) -> Arc<Meeting> {
        let mut meetings = self.meetings.lock();
        if let Some(meeting) = meetings.get(&block).and_then(Weak::upgrade) {
            return meeting;
        }
        meetings.retain(|_, meeting| meeting.strong_count() > 0);
        let meeting = Arc::<Meeting>::default();
        meetings.insert(block, Arc::downgrade(&meeting));
        meeting
    }

    /// The process that owns a block, if it was met and lives.
    pub(super) fn known(&self, block: u32) -> Option<Arc<Peer>> {
        self.peers.lock().get(&block).filter(|peer| !peer.life.has_ended()).cloned()
    }

    pub(super) fn add_peer(&self, block: u32, peer: Peer) -> Result<Arc<Peer>> {
        let peer = Arc::new(peer);
        let mut peers = self.peers.lock();
        if let Some(known) = peers.get(&block).filter(|known| !known.life.has_ended()) {
            return Ok(known.clone());
        }
        self.service.watch(&peer)?;
        // Of one that has ended meanwhile the service thread is told all the same: it watches it until then.
        peers.insert(block, peer.clone());
        Ok(peer)
    }

    /// Gives up a dead peer, so that its descriptors and mappings go with its last queue pair.
    pub(super) fn forget(&self, peer: &Arc<Peer>) {
        self.peers.lock().retain(|_, known| !Arc::ptr_eq(known, peer));
    }
}
