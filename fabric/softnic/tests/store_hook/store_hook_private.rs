//! Like `store_hook`, with memory that the program registered itself on both sides, accessed through its owner's
//! address space or by its owner. A process is killed, or stopped, before its n-th store, for every n; also inside the
//! accesses that its service thread executes for the other.

use std::time::Instant;

use crate::store_step::store_step;
use crate::support::apart::is_alone;
use crate::support::holdings::Holdings;
use crate::support::process::*;
use crate::support::*;
use farcall_softnic::arm_store_hook;
use farcall_verbs::{
    AtomicTarget, Mtu, Notify, QpAttr, QpCap, QpState, RawMr, Revoked, SendWr, Sge, Wc, WcOpcode, WcStatus,
    WrOpcode,
};

/// More than the owner moves in one access.
const LARGE: usize = 150_000;
const SMALL: usize = 61;
/// Areas that the other writes: a small and a large one, and a word for its atomics.
const SMALL_AT: usize = 0;
const LARGE_AT: usize = 4096;
const WORD_AT: usize = 160 << 10;
/// Area that the other reads; it never changes.
const CONSTANT_AT: usize = WORD_AT + 4096;
const SLOT: usize = 16 << 10;
const RECEIVES_AT: usize = 176 << 10;
const SOURCE_AT: usize = RECEIVES_AT + 4 * SLOT;
const HEAP: usize = SOURCE_AT + LARGE;

/// First number of receives.
const RECEIVE: u64 = 1 << 32;
/// Number of messages in each direction.
const MESSAGES: u64 = 3;
/// Number of requests of an end, in this order: two WRITEs, two additions, a swap, a READ, and the messages.
const REQUESTS: u64 = 6 + MESSAGES;

fn len_of(seq: u64) -> usize {
    [16, 900, 9000][seq as usize % 3]
}

/// One end: a queue pair, and heap memory for all that it sends and receives.
struct Side {
    // Dropped in this order: no peer can access the memory when it is freed.
    end: End,
    region: Box<dyn RawMr>,
    heap: Vec<u64>,
    /// Number of requests posted, of those that have completed, and of messages received.
    posted: u64,
    ended: u64,
    received: u64,
    has_failed: bool,
}

impl Side {
    fn new() -> Self {
        let mut end = End::new(4096, ALL, QpCap::default());
        let mut heap = vec![0_u64; HEAP.div_ceil(8)];
        // SAFETY: the memory exists as long as the region, and is accessed through pointers only.
        let region = unsafe { end.pd.reg_mr(heap.as_mut_ptr().cast(), HEAP, ALL) }.unwrap();
        end.init();
        let side = Self { heap, region, end, posted: 0, ended: 0, received: 0, has_failed: false };
        side.put(CONSTANT_AT, &bytes(64, 5));
        side
    }

    fn base(&self) -> *mut u8 {
        self.region.addr()
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= HEAP);
        // SAFETY: the range is inside the memory, and peers do not access what tests write.
        unsafe { self.base().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn get(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= HEAP);
        let mut bytes = vec![0; len];
        // SAFETY: the range is inside the memory. Concurrent writes of a peer only change bytes.
        unsafe { self.base().add(at).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.base() as u64 + at as u64, length: len as u32, lkey: self.region.lkey() }
    }

    fn tell(&self, line: &mut Line) {
        line.say([self.end.qp.qp_num().into(), self.base() as u64, self.region.rkey().into(), 0]);
    }

    /// Returns `false` if the other end has exited or is stopped.
    fn connect(&mut self, to: Address) -> bool {
        let rtr = QpAttr::rtr(to.qpn, 0, self.end.path(), Mtu::Mtu4096);
        if self.end.qp.modify(&rtr).is_err() {
            return false;
        }
        self.end.rts_hasty();
        true
    }

    /// Posts receives, and all requests of this end to the other.
    fn begin(&mut self, to: Address) {
        for slot in 0..MESSAGES {
            let sges = [self.sge(RECEIVES_AT + slot as usize * SLOT, SLOT)];
            self.end.recv(RECEIVE + slot, &sges);
        }
        self.put(SOURCE_AT, &bytes(LARGE, 1));
        let (small, large) = ([self.sge(SOURCE_AT, SMALL)], [self.sge(SOURCE_AT, LARGE)]);
        // Responses are written to the device's own region, and are checked immediately.
        let (word, back) = (|at| [self.end.sge(at, 8)], [self.end.sge(64, 64)]);
        let words = [word(0), word(8), word(16)];
        let atomic = |opcode, id: u64, compare_add, swap| {
            let remote_addr = to.addr + WORD_AT as u64;
            let operands = AtomicTarget { remote_addr, compare_add, swap, rkey: to.rkey };
            SendWr::atomic(opcode, id, &words[id as usize - 2], operands)
        };
        let mut requests = vec![
            SendWr::write(0, &small, to.addr + SMALL_AT as u64, to.rkey),
            SendWr::write(1, &large, to.addr + LARGE_AT as u64, to.rkey),
            atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, 2, 1, 0),
            atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, 3, 1, 0),
            atomic(WrOpcode::ATOMIC_CMP_AND_SWP, 4, 2, 7),
            SendWr::read(5, &back, to.addr + CONSTANT_AT as u64, to.rkey),
        ];
        let messages: Vec<[Sge; 1]> =
            (0..MESSAGES).map(|seq| [self.sge(SOURCE_AT + seq as usize, len_of(seq))]).collect();
        for (seq, sges) in (0..).zip(&messages) {
            requests.push(SendWr::send(6 + seq, sges));
        }
        requests.iter_mut().for_each(|wr| *wr = wr.with_flags(SIGNALED));
        self.end.send(&requests);
        self.posted = REQUESTS;
    }

    /// Continues with requests, a little ahead of the responses, once all requests of `begin` have completed.
    fn go_on(&mut self, to: Address) {
        if self.has_failed || self.ended < REQUESTS || self.posted - self.ended >= 3 {
            return;
        }
        let (id, write, word) = (self.posted, [self.sge(SOURCE_AT, SMALL)], [self.end.sge(24, 8)]);
        let back = [self.end.sge(64, 64)];
        let wr = match (id - REQUESTS) % 3 {
            0 => SendWr::write(id, &write, to.addr + SMALL_AT as u64, to.rkey),
            1 => SendWr::read(id, &back, to.addr + CONSTANT_AT as u64, to.rkey),
            _ => {
                let remote_addr = to.addr + WORD_AT as u64 + 8;
                let operands = AtomicTarget { remote_addr, compare_add: 1, swap: 0, rkey: to.rkey };
                SendWr::atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, id, &word, operands)
            }
        };
        self.end.send(&[wr.with_flags(SIGNALED)]);
        self.posted += 1;
    }

    fn is_done(&self) -> bool {
        self.ended == self.posted && self.received == MESSAGES
    }

    /// Checks one completion.
    fn take(&mut self, wc: Wc) {
        if wc.wr_id >= RECEIVE {
            assert_eq!(wc.wr_id, RECEIVE + self.received, "receives end in order");
            self.received += 1;
            if wc.status.is_success() {
                self.judge_message(&wc);
            } else {
                assert_eq!(wc.status, WcStatus::WR_FLUSH_ERR);
            }
            return;
        }
        assert_eq!(wc.wr_id, self.ended, "requests end in order");
        self.ended += 1;
        if self.has_failed {
            assert_eq!(wc.status, WcStatus::WR_FLUSH_ERR);
        }
        if wc.status.is_success() {
            let word = |at| u64::from_ne_bytes(self.end.get(at, 8).try_into().unwrap());
            match (wc.opcode, wc.wr_id) {
                (WcOpcode::RDMA_READ, _) => {
                    assert!(self.end.get(64, 64) == bytes(64, 5), "a READ found something else");
                }
                (WcOpcode::FETCH_ADD, id) if id >= REQUESTS => assert_eq!(word(24), (id - REQUESTS) / 3),
                (WcOpcode::FETCH_ADD | WcOpcode::COMP_SWAP, id) => {
                    assert_eq!(word(id as usize * 8 - 16), id - 2, "atomics are executed once, in order");
                }
                _ => {}
            }
        } else {
            assert!(matches!(wc.status, WcStatus::RETRY_EXC_ERR | WcStatus::WR_FLUSH_ERR), "{wc:?}");
            self.has_failed = true;
        }
    }

    /// Checks that a message is complete, and that the effects of all earlier requests are visible.
    fn judge_message(&self, wc: &Wc) {
        let seq = wc.wr_id - RECEIVE;
        assert_eq!((wc.opcode, wc.byte_len as usize), (WcOpcode::RECV, len_of(seq)));
        let got = self.get(RECEIVES_AT + seq as usize * SLOT, len_of(seq));
        assert!(got == bytes(LARGE, 1)[seq as usize..][..len_of(seq)], "message {seq} is corrupt");
        assert_eq!(self.progress(), 5, "a message came before what was requested before it");
    }

    /// Returns the number of requests of the other end that have changed this memory. Checks that each byte is old or
    /// new, that the last byte of a WRITE is written last, and that requests take effect in order.
    fn progress(&self) -> u64 {
        let word = u64::from_ne_bytes(self.get(WORD_AT, 8).try_into().unwrap());
        let by_atomics = [0, 1, 2, 7].iter().position(|value| *value == word).expect("a value of the word");
        let small = self.written(SMALL_AT, SMALL);
        let large = self.written(LARGE_AT, LARGE);
        assert!(small.1 || !large.0, "the second WRITE before the first");
        assert!(large.1 || by_atomics == 0, "an atomic before the WRITEs");
        u64::from(small.1) + u64::from(large.1) + by_atomics as u64
    }

    /// Returns whether a WRITE has begun, and whether it is complete.
    fn written(&self, at: usize, len: usize) -> (bool, bool) {
        let (found, new) = (self.get(at, len), bytes(LARGE, 1));
        let is_new = |i: &usize| found[*i] == new[*i];
        assert!((0..len).all(|i| found[i] == 0 || is_new(&i)), "a byte that nobody wrote");
        let has_begun = found.iter().any(|byte| *byte != 0);
        let is_whole = (0..len).all(|i| is_new(&i));
        // A byte that is 0 in both states carries no information.
        let has_last = new[len - 1] != 0 && found[len - 1] == new[len - 1];
        assert!(is_whole || !has_last, "the last byte came before others");
        (has_begun, is_whole)
    }

    fn turn(&mut self) {
        match self.end.poll() {
            Some(wc) => self.take(wc),
            None => std::thread::yield_now(),
        }
    }

    /// Everything is flushed, and no peer accesses the memory any more.
    fn end(mut self) {
        let start = Instant::now();
        self.end.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
        while !self.is_done() {
            assert!(start.elapsed() < LOST, "{} requests, {} receives ended", self.ended, self.received);
            self.turn();
        }
        // A peer that exists may be inside an access, and not be scheduled for a while.
        while !self.end.qp.is_quiesced() {
            assert!(start.elapsed() < LOST, "somebody is inside for ever");
            std::thread::yield_now();
        }
        self.progress();
        drop(self.end.qp);
        assert_eq!(self.region.dereg(), Revoked::Now);
        drop(self.heap);
    }
}

/// A process that is not dumpable and has no privileges cannot pass its address space to peers; its service thread
/// serves them.
fn hide() {
    // SAFETY: the system calls use no memory of this process, and run before there are threads that depend on its
    // credentials.
    unsafe {
        if libc::geteuid() == 0 {
            assert!(libc::setgid(65534) == 0 && libc::setuid(65534) == 0);
        }
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        // The change of the user has reset the signal on the parent's exit.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
    assert!(std::fs::File::open("/proc/self/mem").is_err());
}

/// The process that exits.
fn victim(line: &mut Line, nth: u64, signal: i32) {
    let mut side = Side::new();
    side.tell(line);
    let Some(to) = learn(line) else { return };
    assert!(arm_store_hook(nth, signal));
    assert!(side.connect(to));
    side.begin(to);
    while !side.is_done() {
        let wc = side.end.sleep(Notify::Any);
        assert_eq!(wc.status, WcStatus::SUCCESS);
        side.take(wc);
    }
    side.end();
}

const DONE: [u64; 4] = [0xD_0E, 0, 0, 0];

#[test]
fn child_entry() {
    let Some((role, args, mut line)) = role() else { return };
    if args[0] == 1 {
        hide();
    }
    match role.as_str() {
        "victim" => {
            victim(&mut line, args[1], args[2] as i32);
            line.say(DONE);
            // Exists until told to exit: the survivor distinguishes a normal end of the victim from a crash.
            line.hear();
        }
        "survivor" => {
            sweep(true, args[1] as i32);
            line.say(DONE);
        }
        other => panic!("unknown role {other}"),
    }
    std::process::exit(0);
}

/// Other processes reach private memory of this process, regardless of what the victim delays.
fn others_work() {
    let (mut a, mut b) = (Side::new(), Side::new());
    let address = |side: &Side| Address {
        qpn: side.end.qp.qp_num(),
        addr: side.base() as u64,
        rkey: side.region.rkey(),
    };
    let (of_a, of_b) = (address(&a), address(&b));
    assert!(a.connect(of_b) && b.connect(of_a));
    a.begin(of_b);
    b.begin(of_a);
    let start = Instant::now();
    while !(a.is_done() && b.is_done()) {
        assert!(start.elapsed() < LOST, "others are not served");
        a.turn();
        b.turn();
    }
    assert_eq!((a.has_failed, b.has_failed, a.progress(), b.progress()), (false, false, 5, 5));
    a.end();
    b.end();
}

/// Runs one case. Returns whether the victim ended normally.
fn run(hidden: bool, nth: u64, signal: i32) -> bool {
    let mut other = start("victim", &[hidden.into(), nth, signal as u64]);
    let mut survivor = Side::new();
    let to = learn(&mut other.line);
    survivor.tell(&mut other.line);
    if !to.is_some_and(|to| survivor.connect(to)) {
        assert_ne!(other.wait(), ProcessState::Exited(0));
        return false;
    }
    let to = to.expect("connected");
    survivor.begin(to);
    let (start, mut finished) = (Instant::now(), false);
    loop {
        survivor.turn();
        survivor.go_on(to);
        match other.state() {
            ProcessState::Runs => {}
            ProcessState::Stopped => {
                others_work();
                break;
            }
            state => {
                assert_eq!(state, ProcessState::Killed(signal));
                break;
            }
        }
        if readable(std::os::fd::AsRawFd::as_raw_fd(other.line.raw()), 0)
            && other.state() == ProcessState::Runs
        {
            finished = other.line.hear() == Some(DONE);
            break;
        }
        assert!(start.elapsed() < LOST, "store {nth}: neither dead nor done");
    }
    other.kill();
    let state = other.wait_for_end();
    assert!(matches!(state, ProcessState::Killed(_)), "the victim failed: {state:?}");
    if finished {
        assert_eq!(survivor.progress(), 5, "what succeeded is there");
    }
    // Without its peer every request completes by itself, with a failure.
    while !survivor.has_failed || survivor.ended < survivor.posted {
        assert!(start.elapsed() < LOST, "store {nth}: {} requests ended", survivor.ended);
        survivor.turn();
        survivor.go_on(to);
    }
    survivor.end();
    finished
}

fn sweep(hidden: bool, signal: i32) {
    // Creates now what is created once.
    assert!(run(hidden, u64::MAX, signal));
    others_work();
    let before = Holdings::now();
    // The number of stores of the victim depends on how often it sleeps, and on what others do for it in the meantime.
    // The sweep is complete when it ends normally every time, after at least the number of stores on an idle machine.
    let (mut nth, mut deaths, mut ends) = (0, 0, 0);
    while ends < 5 || nth < 80 {
        nth += store_step();
        ends = if run(hidden, nth, signal) { ends + 1 } else { 0 };
        deaths += u64::from(ends == 0);
    }
    println!("hidden {hidden}, signal {signal}: {deaths} deaths before the first {nth} stores");
    assert!(deaths > 20, "the victim stores more often than that");
    // The service thread closes what the exited process left a moment later.
    before.wait_for(|| ());
}

/// The test runs in a process of its own, because it counts resources of the entire process.
#[test]
#[ignore = "takes half a minute: cargo test -- --ignored"]
fn survives_a_kill_or_stop_at_any_store_with_private_memory() {
    if !is_alone("survives_a_kill_or_stop_at_any_store_with_private_memory") {
        return;
    }
    for signal in [libc::SIGKILL, libc::SIGSTOP] {
        sweep(false, signal);
    }
    // As a process that cannot pass its address space to peers.
    for signal in [libc::SIGKILL, libc::SIGSTOP] {
        let mut survivor = start("survivor", &[1, signal as u64]);
        survivor.line.raw().set_read_timeout(None).unwrap();
        assert_eq!(survivor.line.hear(), Some(DONE), "see what it printed");
    }
}
