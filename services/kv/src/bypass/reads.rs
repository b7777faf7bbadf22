//! A queue pair for READs, with buffers for a window of concurrent lookups.

use std::sync::Arc;

use farcall_link::bootstrap::QpInfo;
use farcall_link::{Completed, Connection, LocalSlice, Nic, QpSizes, Region, RegionId, Remote, Transport};
use farcall_verbs::{Access, CqInitAttr, Error, RawCq, Wc, with_sources};

use super::lookup::{KeyLookup, LookupStep, Table};
use super::service::Opened;
use super::{ReadCounters, Scheme};

/// Reason, as text, for which READs fail and the connection is no longer usable.
#[derive(Debug)]
pub(super) struct ReadPathLost(pub String);

/// A queue pair for READs that is not connected yet.
pub(super) struct UnconnectedReader {
    nic: Nic,
    cq: Box<dyn RawCq>,
    connection: Connection,
    window: usize,
}

impl UnconnectedReader {
    /// Creates a queue pair for up to `window` concurrent lookups.
    pub fn new(nic: &Nic, window: usize) -> Result<Self, Error> {
        let depth = window as u32 + 2;
        let cq = nic.context().create_cq(&CqInitAttr { cqe: 2 * depth, channel: None })?;
        let config = QpSizes {
            send_depth: depth,
            recv_depth: 1,
            sges_max: 1,
            signal_every: 1,
            inline_max_bytes: 0,
            access: Access::LOCAL_WRITE,
        };
        let connection = Connection::new(nic, Transport::Rc, &*cq, config, None)?;
        Ok(Self { nic: nic.clone(), cq, connection, window })
    }

    pub fn info(&self) -> QpInfo {
        self.connection.info(&self.nic)
    }

    /// Connects the queue pair. `Ok(Err(_))`: the server is not such a store.
    pub fn connect<S: Scheme>(mut self, opened: Opened) -> Result<Result<Reader<S>, &'static str>, Error> {
        if opened.groups != [S::GROUPS, S::SPAN] {
            return Ok(Err("its index is of another kind"));
        }
        let table = Table::new(opened.entries, opened.inline_bytes, opened.value_max_bytes, opened.seed);
        let Some(table) = table else { return Ok(Err("its sizes are impossible")) };
        let stride = table.read_max_bytes().next_multiple_of(64);
        let local = Arc::new(Region::alloc(&**self.nic.pd(), stride * self.window, Access::LOCAL_WRITE)?);
        let local_id = self.connection.attach(Arc::clone(&local));
        self.connection.connect(&self.nic, &opened.qp)?;
        Ok(Ok(Reader {
            connection: self.connection,
            cq: self.cq,
            local,
            local_id,
            stride,
            lookups: vec![None; self.window],
            wcs: [Wc::default(); AT_ONCE],
            table,
            opened,
            // No store has this number of moves, so the first key that is not found is looked up twice.
            moves: u64::MAX,
            bytes: Vec::new(),
        }))
    }
}

/// Maximum number of completions polled at once.
pub(super) const AT_ONCE: usize = 16;

/// Reads the store of one server.
pub(super) struct Reader<S> {
    connection: Connection,
    cq: Box<dyn RawCq>,
    local: Arc<Region>,
    local_id: RegionId,
    /// Distance between the receive buffers of two lookups in bytes.
    stride: usize,
    lookups: Vec<Option<KeyLookup>>,
    wcs: [Wc; AT_ONCE],
    table: Table<S>,
    opened: Opened,
    /// Number of moves when it was last read.
    moves: u64,
    /// Contents of the last READ.
    bytes: Vec<u8>,
}

impl<S: Scheme> Reader<S> {
    /// Starts the lookup of a key in slot `at` of the window.
    pub fn begin(&mut self, at: usize, key: &[u8], counters: &mut ReadCounters) -> Result<(), ReadPathLost> {
        let key = self.table.router().key(key).map_err(|error| ReadPathLost(error.to_string()))?;
        let lookup = KeyLookup::new(&self.table, &key, self.moves);
        self.lookups[at] = Some(lookup);
        self.read(at, lookup, counters)
    }

    /// Polls for completed READs. Writes the slots of their lookups to `ended`, at most [`AT_ONCE`], and returns their
    /// number.
    pub fn poll(&mut self, ended: &mut [usize; AT_ONCE]) -> Result<usize, ReadPathLost> {
        let count = self.cq.poll(&mut self.wcs).map_err(|error| ReadPathLost(with_sources(&error)))?;
        for (wc, ended) in self.wcs[..count].iter().zip(ended) {
            match self.connection.complete(wc) {
                Completed::Send { tag, .. } => *ended = tag as usize,
                // A flushed READ has completed as well, but without data.
                other => return Err(ReadPathLost(format!("a READ ended with {other:?}"))),
            }
        }
        Ok(count)
    }

    /// Continues a lookup whose READ has completed, and posts its next READ if there is one.
    pub fn step(
        &mut self,
        at: usize,
        key: &[u8],
        value: &mut Vec<u8>,
        counters: &mut ReadCounters,
    ) -> Result<LookupStep, ReadPathLost> {
        let Some(mut lookup) = self.lookups.get(at).copied().flatten() else {
            return Err(ReadPathLost("a READ completed that was not posted".into()));
        };
        let (_, _, len_bytes) = self.table.place(lookup.target());
        self.bytes.clear();
        self.local.append_to(at * self.stride, len_bytes, &mut self.bytes);
        let step = lookup.step(&self.table, key, &self.bytes, value);
        self.lookups[at] = Some(lookup);
        match step {
            LookupStep::Read(_) => self.read(at, lookup, counters)?,
            LookupStep::Missing(moves) | LookupStep::Moved(moves) => self.moves = moves,
            LookupStep::Torn => counters.torn += 1,
            LookupStep::Found => {}
            LookupStep::Invalid(what) => {
                return Err(ReadPathLost(format!("the server stores what no store has: {what}")));
            }
        }
        counters.moved += u64::from(matches!(step, LookupStep::Moved(_)));
        Ok(step)
    }

    fn read(
        &mut self,
        at: usize,
        lookup: KeyLookup,
        counters: &mut ReadCounters,
    ) -> Result<(), ReadPathLost> {
        let (is_in_index, offset, len_bytes) = self.table.place(lookup.target());
        let grant = if is_in_index { &self.opened.index } else { &self.opened.extents };
        let into = LocalSlice { region: self.local_id, offset: at * self.stride, len_bytes };
        counters.reads += 1;
        let posted = self.connection.read(into, Remote { grant, offset }, at as u32);
        posted.map(drop).map_err(|why| ReadPathLost(with_sources(&why)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bypass::entry::ENTRY_BYTES;
    use crate::bypass::{BypassConfig, Service};
    use crate::key::Key;
    use crate::{farm::Farm, pilaf::Pilaf};
    use farcall_rpc::Handler;
    use farcall_softnic::SoftNic;
    use farcall_verbs::WcStatus;

    const CONFIG: BypassConfig =
        BypassConfig { entries: 64, extents_bytes: 1 << 14, value_max_bytes: 100, inline_bytes: 0 };

    /// A store and a reader that make progress only when the test calls them.
    struct Ends<S> {
        service: Service<S>,
        reader: Reader<S>,
        counters: ReadCounters,
    }

    fn connect<S: Scheme>(service: &mut Service<S>) -> Reader<S> {
        let pair = UnconnectedReader::new(&service.nic, 1).unwrap();
        let opened = service.open(1, &pair.info()).unwrap();
        pair.connect(opened).unwrap().unwrap()
    }

    impl<S: Scheme> Ends<S> {
        fn new(inline_bytes: u32) -> Self {
            let nic = Nic::open(&SoftNic::new()).unwrap();
            let mut service = Service::new(nic, CONFIG.inline_bytes(inline_bytes), 1).unwrap();
            let reader = connect(&mut service);
            Self { service, reader, counters: ReadCounters::default() }
        }

        fn put(&mut self, key: &[u8], value: &[u8]) {
            let store = self.service.store();
            let router = store.router().clone();
            store.put(&router.key(key).unwrap(), value).unwrap();
        }

        /// Performs one lookup to its end.
        fn try_lookup(&mut self, key: &[u8]) -> Result<(LookupStep, Vec<u8>), ReadPathLost> {
            let Self { reader, counters, .. } = self;
            let mut value = Vec::new();
            reader.begin(0, key, counters)?;
            loop {
                while reader.poll(&mut [0; AT_ONCE])? == 0 {}
                match reader.step(0, key, &mut value, counters)? {
                    LookupStep::Read(_) => {}
                    step => return Ok((step, value)),
                }
            }
        }

        fn lookup(&mut self, key: &[u8]) -> LookupStep {
            self.try_lookup(key).unwrap().0
        }
    }

    fn check_half_written_items<S: Scheme>(inline_bytes: u32) {
        let mut ends = Ends::<S>::new(inline_bytes);
        ends.put(b"key", b"value");
        assert_eq!(ends.try_lookup(b"key").unwrap(), (LookupStep::Found, b"value".to_vec()));
        let store = ends.service.store();
        let ([index, extents], router) = (store.regions(), store.router().clone());
        let slot = store.slot_of(&router.key(b"key").unwrap()).unwrap();
        let at = store.layout().offset_of(slot);
        let pair = if inline_bytes == 0 { (extents, 0) } else { (index.clone(), at + ENTRY_BYTES) };
        for (region, offset) in [pair, (index.clone(), at), (index, at + 24)] {
            let word = region.load_relaxed(offset);
            region.store_release(offset, word ^ 1 << 40);
            assert_eq!(ends.try_lookup(b"key").unwrap(), (LookupStep::Torn, Vec::new()), "{offset}");
            region.store_release(offset, word);
            assert_eq!(ends.lookup(b"key"), LookupStep::Found);
        }
    }

    #[test]
    fn rejects_half_written_items_as_torn() {
        check_half_written_items::<Pilaf>(0);
        check_half_written_items::<Farm>(0);
        check_half_written_items::<Farm>(64);
    }

    fn a_missing_key_is_missing_once_nothing_moves<S: Scheme>() {
        let mut ends = Ends::<S>::new(0);
        assert_eq!(ends.lookup(b"absent"), LookupStep::Moved(0), "nothing is known before");
        assert_eq!(ends.lookup(b"absent"), LookupStep::Missing(0));
        let [index, _] = ends.service.store().regions();
        let mut stored = 0_u32;
        while index.load_relaxed(0) == 0 {
            ends.put(&stored.to_le_bytes(), b"");
            stored += 1;
        }
        let moves = index.load_relaxed(0);
        assert_eq!(ends.lookup(b"absent"), LookupStep::Moved(moves));
        assert_eq!(ends.lookup(b"absent"), LookupStep::Missing(moves));
        for number in (0..stored).map(u32::to_le_bytes) {
            assert_eq!(ends.lookup(&number), LookupStep::Found, "{number:?}");
        }
    }

    #[test]
    fn reports_a_key_missing_only_if_no_entry_moved() {
        a_missing_key_is_missing_once_nothing_moves::<Pilaf>();
        a_missing_key_is_missing_once_nothing_moves::<Farm>();
    }

    #[test]
    fn distinguishes_keys_with_equal_hashes() {
        for inline_bytes in [0, 64] {
            let mut ends = Ends::<Farm>::new(inline_bytes);
            ends.put(b"one", b"1");
            // Simulates another key with the same hash.
            let store = ends.service.store();
            let router = store.router().clone();
            let hash = router.key(b"one").unwrap().hash();
            store.put(&Key::with_hash(b"other", hash), b"2").unwrap();
            for (key, value) in [(&b"one"[..], &b"1"[..]), (b"other", b"2")] {
                let Ends { reader, counters, .. } = &mut ends;
                let (lookup, mut found) =
                    (KeyLookup::new(&reader.table, &Key::with_hash(key, hash), 0), Vec::new());
                reader.lookups[0] = Some(lookup);
                reader.read(0, lookup, counters).unwrap();
                let step = loop {
                    while reader.poll(&mut [0; AT_ONCE]).unwrap() == 0 {}
                    match reader.step(0, key, &mut found, counters).unwrap() {
                        LookupStep::Read(_) => {}
                        step => break step,
                    }
                };
                assert_eq!((step, &found[..]), (LookupStep::Found, value));
            }
        }
    }

    #[test]
    fn what_clients_read_they_cannot_write() {
        let mut ends = Ends::<Pilaf>::new(0);
        let index = ends.service.store().regions()[0].clone();
        let reader = &mut ends.reader;
        let (grant, before) = (reader.opened.index, index.load_relaxed(64 + 24));
        let from = LocalSlice { region: reader.local_id, offset: 0, len_bytes: 8 };
        reader.connection.write(from, Remote { grant: &grant, offset: 64 + 24 }).unwrap();
        let mut wcs = [Wc::default(); 1];
        while reader.cq.poll(&mut wcs).unwrap() == 0 {}
        assert_eq!(reader.connection.complete(&wcs[0]), Completed::Failed(WcStatus::REM_INV_REQ_ERR));
        assert_eq!(index.load_relaxed(64 + 24), before);
        assert!(ends.try_lookup(b"key").is_err(), "the queue pair is of no use any more");
    }

    #[test]
    fn keeps_one_read_queue_pair_per_connection_until_it_closes() {
        let mut ends = Ends::<Farm>::new(0);
        assert_eq!(ends.lookup(b"absent"), LookupStep::Moved(0));
        let second = connect(&mut ends.service);
        assert!(ends.try_lookup(b"absent").is_err());
        ends.reader = second;
        assert_eq!(ends.lookup(b"absent"), LookupStep::Moved(0));
        ends.service.closed(1);
        assert!(ends.try_lookup(b"absent").is_err());
    }
}
