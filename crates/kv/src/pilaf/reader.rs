//! The client's half of a GET: READs of entries and extents, each verified before it is believed.

use std::sync::Arc;

use farcall_link::bootstrap::QpInfo;
use farcall_link::{Completed, Connection, Nic, PairConfig, Piece, Region, RegionId, Remote, Transport};
use farcall_verbs::{Access, CqInitAttr, Error, RawCq, Wc};

use super::entry::{Checksums, ENTRY_BYTES, Entry, offset_of, slots_of};
use super::extents::{GRANULE_BYTES, decode_pair};
use super::service::Opened;
use super::store::{VALUE_MAX_BYTES, extent_max_bytes};
use crate::key::{HashSeed, Key, Router};

/// What GETs took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadCounters {
    /// GETs.
    pub gets: u64,
    /// READs posted for them.
    pub reads: u64,
    /// Looks that met an entry or an extent while it was changed, and were made again.
    pub torn: u64,
    /// Keys that were not found while entries moved, and looked for again.
    pub moved: u64,
    /// GETs that were made as calls, after too many looks.
    pub gets_by_call: u64,
}

/// What one look at the store tells.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The value was appended to the caller's vector.
    Found,
    Missing,
    /// Something was changed meanwhile: look again.
    Torn,
    /// Entries moved meanwhile: look again.
    Moved,
}

/// READs fail: the connection is of no use any more. In words.
pub(super) struct Lost(pub String);

/// A queue pair for READs, not connected yet.
pub(super) struct Unconnected {
    nic: Nic,
    cq: Box<dyn RawCq>,
    connection: Connection,
}

impl Unconnected {
    pub fn new(nic: &Nic) -> Result<Self, Error> {
        let cq = nic.context.create_cq(&CqInitAttr { cqe: 8, channel: None })?;
        let config = PairConfig {
            send_depth: 4,
            recv_depth: 1,
            sges_max: 1,
            signal_every: 1,
            inline_max_bytes: 0,
            access: Access::LOCAL_WRITE,
        };
        let connection = Connection::new(nic, Transport::Rc, &*cq, config, None)?;
        Ok(Self { nic: nic.clone(), cq, connection })
    }

    pub fn info(&self) -> QpInfo {
        self.connection.info(&self.nic)
    }

    pub fn connect(mut self, opened: Opened) -> Result<Reader, Error> {
        let value_max_bytes = usize::try_from(opened.value_max_bytes).unwrap_or(usize::MAX);
        let extent_max_bytes = extent_max_bytes(value_max_bytes.min(VALUE_MAX_BYTES));
        let local = Arc::new(Region::alloc(&*self.nic.pd, extent_max_bytes, Access::LOCAL_WRITE)?);
        let local_id = self.connection.attach(Arc::clone(&local));
        self.connection.connect(&self.nic, &opened.qp)?;
        Ok(Reader {
            connection: self.connection,
            cq: self.cq,
            local,
            local_id,
            extent_max_bytes,
            checksums: Checksums::new(opened.seed),
            opened,
            // No store has moved so many: the first miss is looked at twice.
            moves: u64::MAX,
            extent: Vec::new(),
        })
    }
}

/// Reads one server's store.
pub(super) struct Reader {
    connection: Connection,
    cq: Box<dyn RawCq>,
    local: Arc<Region>,
    local_id: RegionId,
    extent_max_bytes: usize,
    checksums: Checksums,
    opened: Opened,
    /// How many entries had moved before this look began, or earlier.
    moves: u64,
    extent: Vec<u8>,
}

impl Reader {
    pub fn router(&self) -> Router {
        Router::new(HashSeed(self.opened.seed), 1)
    }

    /// Looks once for a key: entry by entry, then the extent.
    pub fn look(
        &mut self,
        key: &Key<'_>,
        value: &mut Vec<u8>,
        counters: &mut ReadCounters,
    ) -> Result<Look, Lost> {
        for slot in slots_of(key.hash(), self.opened.entries) {
            let Some(entry) = self.read_entry(slot, counters)? else { return Ok(Look::Torn) };
            if entry.is_empty() || entry.hash != key.hash() {
                continue;
            }
            self.read_extent(&entry, counters)?;
            if self.checksums.of(&self.extent) != entry.checksum {
                return Ok(Look::Torn);
            }
            match decode_pair(&self.extent) {
                Some((found, bytes)) if found == key.bytes() => {
                    value.extend_from_slice(bytes);
                    return Ok(Look::Found);
                }
                Some(_) => {}
                None => return Err(Lost("the server stores what is no key and value".into())),
            }
        }
        let index = self.opened.index;
        counters.reads += 1;
        self.read(&index, 0, 8)?;
        let moves = self.local.load_acquire(0);
        // The earlier number was read before this look: no key was on its way meanwhile.
        let was_still = std::mem::replace(&mut self.moves, moves) == moves;
        Ok(if was_still { Look::Missing } else { Look::Moved })
    }

    /// An entry, if it is whole.
    fn read_entry(&mut self, slot: u32, counters: &mut ReadCounters) -> Result<Option<Entry>, Lost> {
        let index = self.opened.index;
        counters.reads += 1;
        self.read(&index, offset_of(slot), ENTRY_BYTES)?;
        Ok(self.checksums.open([0, 8, 16, 24].map(|word| self.local.load_relaxed(word))))
    }

    /// What is where an entry says its extent is.
    fn read_extent(&mut self, entry: &Entry, counters: &mut ReadCounters) -> Result<(), Lost> {
        let len_bytes = entry.len_bytes as usize;
        if len_bytes > self.extent_max_bytes {
            return Err(Lost(format!(
                "an extent of {len_bytes} bytes; the server said {} at most",
                self.extent_max_bytes
            )));
        }
        let extents = self.opened.extents;
        counters.reads += 1;
        self.read(&extents, entry.granule as usize * GRANULE_BYTES, len_bytes)?;
        self.extent.clear();
        self.local.append_to(0, len_bytes, &mut self.extent);
        Ok(())
    }

    /// One READ, to its end. A server that does not answer ends it by the queue pair's timeouts.
    fn read(
        &mut self,
        grant: &farcall_link::RemoteRegion,
        offset: usize,
        len_bytes: usize,
    ) -> Result<(), Lost> {
        const LOOKS_PER_YIELD: u32 = 1_000;
        let into = Piece { region: self.local_id, offset: 0, len_bytes };
        let ticket =
            self.connection.read(into, Remote { grant, offset }, 0).map_err(|why| Lost(why.to_string()))?;
        let mut looks = 0_u32;
        while !self.connection.is_done(ticket) {
            let mut wcs = [Wc::default(); 1];
            match self.cq.poll(&mut wcs).map_err(|error| Lost(error.to_string()))? {
                0 => looks += 1,
                _ => match self.connection.complete(&wcs[0]) {
                    Completed::Send { .. } => {}
                    // Flushed READs count as done, too, and bring nothing.
                    other => return Err(Lost(format!("a READ ended with {other:?}"))),
                },
            }
            if looks >= LOOKS_PER_YIELD {
                looks = 0;
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pilaf::PilafConfig;
    use crate::pilaf::service::Service;
    use farcall_rpc::Handler;
    use farcall_softnic::SoftNic;
    use farcall_verbs::WcStatus;

    /// A store and a reader, with nothing between them that could happen by itself.
    fn ends() -> (Service, Reader, ReadCounters) {
        let nic = Nic::open(&SoftNic::new()).unwrap();
        let config = PilafConfig::default().entries(64).extents_bytes(1 << 14).value_max_bytes(100);
        let mut service = Service::new(nic.clone(), config, 1).unwrap();
        let pair = Unconnected::new(&nic).unwrap();
        let opened = service.open(1, &pair.info()).unwrap();
        (service, pair.connect(opened).unwrap(), ReadCounters::default())
    }

    fn look(reader: &mut Reader, key: &[u8], counters: &mut ReadCounters) -> (Look, Vec<u8>) {
        let (router, mut value) = (reader.router(), Vec::new());
        let look =
            reader.look(&router.key(key).unwrap(), &mut value, counters).map_err(|lost| lost.0).unwrap();
        (look, value)
    }

    #[test]
    fn what_is_half_written_is_torn_and_nothing_of_it_is_given() {
        let (mut service, mut reader, mut counters) = ends();
        let store = service.store();
        let key = store.router().clone();
        store.put(&key.key(b"key").unwrap(), b"value").unwrap();
        assert_eq!(look(&mut reader, b"key", &mut counters), (Look::Found, b"value".to_vec()));
        let [index, extents] = store.regions();
        let slot = store.slot_of(&key.key(b"key").unwrap()).unwrap();
        for (region, offset) in [(&extents, 0), (&index, offset_of(slot)), (&index, offset_of(slot) + 24)] {
            let word = region.load_relaxed(offset);
            region.store_release(offset, word ^ 1 << 40);
            let torn = look(&mut reader, b"key", &mut counters);
            assert_eq!(torn, (Look::Torn, Vec::new()), "{offset}");
            region.store_release(offset, word);
            assert_eq!(look(&mut reader, b"key", &mut counters).0, Look::Found);
        }
    }

    #[test]
    fn a_key_is_missing_only_if_no_entry_moved_meanwhile() {
        let (mut service, mut reader, mut counters) = ends();
        assert_eq!(look(&mut reader, b"absent", &mut counters).0, Look::Moved, "nothing is known before");
        assert_eq!(look(&mut reader, b"absent", &mut counters).0, Look::Missing);
        let store = service.store();
        let (router, [index, _]) = (store.router().clone(), store.regions());
        let mut stored = 0_u32;
        while index.load_relaxed(0) == 0 {
            store.put(&router.key(&stored.to_le_bytes()).unwrap(), b"").unwrap();
            stored += 1;
        }
        assert_eq!(look(&mut reader, b"absent", &mut counters).0, Look::Moved);
        assert_eq!(look(&mut reader, b"absent", &mut counters).0, Look::Missing);
        for number in (0..stored).map(u32::to_le_bytes) {
            assert_eq!(look(&mut reader, &number, &mut counters).0, Look::Found, "{number:?}");
        }
    }

    #[test]
    fn what_clients_read_they_cannot_write() {
        let (mut service, mut reader, _) = ends();
        let before = service.store().regions()[0].load_relaxed(offset_of(0) + 24);
        let grant = reader.opened.index;
        let from = Piece { region: reader.local_id, offset: 0, len_bytes: 8 };
        let to = Remote { grant: &grant, offset: offset_of(0) + 24 };
        reader.connection.write(from, to).unwrap();
        let mut wcs = [Wc::default(); 1];
        while reader.cq.poll(&mut wcs).unwrap() == 0 {}
        assert_eq!(reader.connection.complete(&wcs[0]), Completed::Failed(WcStatus::REM_INV_REQ_ERR));
        assert_eq!(service.store().regions()[0].load_relaxed(offset_of(0) + 24), before);
        assert!(reader.read(&grant, 0, 8).is_err(), "the queue pair is of no use any more");
    }

    #[test]
    fn a_connection_has_one_queue_pair_to_read_over_which_ends_with_it() {
        let (mut service, mut reader, mut counters) = ends();
        assert_eq!(look(&mut reader, b"absent", &mut counters).0, Look::Moved);
        let second = Unconnected::new(&service.nic).unwrap();
        let opened = service.open(1, &second.info()).unwrap();
        let mut second = second.connect(opened).unwrap();
        assert!(reader.read_entry(0, &mut counters).is_err());
        assert_eq!(look(&mut second, b"absent", &mut counters).0, Look::Moved);
        service.closed(1);
        assert!(second.read_entry(0, &mut counters).is_err());
    }
}
