//! Execution of requests: the model's side of it, and the results of polling.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use farcall_layout::{AsyncEvent, CqEx};
use farcall_verbs::{Wc, WcFlags, WcStatus};
use libc::EINVAL;

use crate::library::{errno, inline, zeroed};
use crate::traffic::Planned;
use crate::world::{Action, Done, Effect, RECEIVE, Rng, SendRecord, UD, World, state, status};

const GRH_BYTES: u64 = 40;
/// Deadline of a wait on a busy machine; shorter while a failure is being minimized.
fn patience() -> Duration {
    let text = std::env::var("FARCALL_ABI_PATIENCE_MS").unwrap_or_default();
    Duration::from_millis(text.parse().unwrap_or(30_000))
}

/// `ibv_wc_opcode`.
const RECV: u32 = 128;
const RECV_WITH_IMM: u32 = 129;

impl World {
    /// Handles new completions of a pair: armed queues must raise an event.
    pub fn arrived(&mut self, qp: usize) {
        let (send_cq, recv_cq) = (self.qps[qp].send_cq, self.qps[qp].recv_cq);
        let pair = &mut self.qps[qp];
        let is_news = |done: &mut Done| std::mem::take(&mut done.fresh) && done.must;
        let sends = pair.send_done.iter_mut().filter_map(|done| is_news(done).then_some(())).count() > 0;
        let receives = pair.recv_done.iter_mut().filter_map(|done| is_news(done).then_some(())).count() > 0;
        let receives = receives && pair.srq.is_none();
        for (cq, is_there) in [(send_cq, sends), (recv_cq, receives)] {
            let queue = &mut self.cqs[cq];
            queue.must_event |= queue.armed && is_there;
        }
    }

    /// Executes the requests that a connected pair can execute.
    pub fn progress(&mut self, qp: usize) {
        let Some(other) = self.partner(qp) else { return };
        while self.qps[qp].state == state::RTS && !self.qps[qp].loose && !self.qps[other].loose {
            let Some(send) = self.qps[qp].sends.front().cloned() else { break };
            let consumes = send.action == Action::Send || send.imm.is_some();
            if let Some(statuses) = send.bad {
                // It is not specified whether the target first needs a receive or checks the key.
                let is_local = statuses == status::LOC_PROT;
                return if consumes && !is_local { self.loosen(qp) } else { self.fail(qp, statuses) };
            }
            if consumes && self.qps[other].srq.is_some_and(|srq| self.srqs[srq].loose) {
                return self.loosen(qp);
            }
            if consumes && !self.deliver(qp, other, &send, true) {
                break;
            }
            self.qps[qp].sends.pop_front();
            self.complete(qp, &send, true);
        }
        self.arrived(qp);
        self.arrived(other);
    }

    fn complete(&mut self, qp: usize, send: &SendRecord, late: bool) {
        if !send.signaled {
            if late {
                // Without a completion, unless it is flushed before it is executed.
                self.qps[qp].send_done.push_back(Done::maybe(Some(send.wr_id), send.seq));
            }
            return;
        }
        let opcode = match send.action {
            Action::Send => 0,
            Action::Write => 1,
            Action::Read => 2,
            Action::CompareSwap => 3,
            Action::FetchAdd => 4,
        };
        let effect = send.effect;
        let done = Done { opcode, effect, late, ..Done::with(Some(send.wr_id), send.seq, status::SUCCESS) };
        self.qps[qp].send_done.push_back(done);
    }

    /// Delivers a message to the other end's oldest receive. Returns false if there is none.
    fn deliver(&mut self, from: usize, to: usize, send: &SendRecord, late: bool) -> bool {
        let is_write = send.action == Action::Write;
        let with_grh = self.qps[from].qp_type == UD;
        let done = Done {
            opcode: if is_write { RECV_WITH_IMM } else { RECV },
            byte_len: Some(send.len + if with_grh { GRH_BYTES } else { 0 }),
            imm: send.imm,
            src_qp: self.qps[from].qp_num,
            late,
            pattern: (!is_write).then_some(send.pattern),
            ..Done::with(None, 0, status::SUCCESS)
        };
        if let Some(srq) = self.qps[to].srq {
            let queue = &mut self.srqs[srq];
            if queue.loose || queue.claimed >= queue.posted.len() {
                return false;
            }
            queue.claimed += 1;
            self.qps[to].recv_done.push_back(done);
            return true;
        }
        let Some(recv) = self.qps[to].recvs.pop_front() else { return false };
        let buffer = Some((recv.addr, recv.len));
        self.qps[to].recv_done.push_back(Done { wr_id: Some(recv.wr_id), buffer, ..done });
        true
    }

    /// Fails a request: its status is certain, but the time of the following events is not.
    fn fail(&mut self, qp: usize, statuses: &'static [u32]) {
        let Some(send) = self.qps[qp].sends.pop_front() else { return };
        let done = Done { late: true, ..Done::with(Some(send.wr_id), send.seq, statuses) };
        self.qps[qp].send_done.push_back(done);
        self.has_failed = true;
        self.loosen(qp);
        // It is certain to occur.
        if let Some(sure) = self.qps[qp].send_done.iter_mut().find(|done| done.seq == send.seq) {
            (sure.must, sure.statuses) = (true, statuses);
        }
        self.arrived(qp);
    }

    pub fn datagram(&mut self, qp: usize, planned: Planned) {
        let (record, Some((_, target, _, qkey))) = (planned.record, planned.ud) else { return };
        if self.qps[qp].state != state::RTS || (record.bad.is_some() && self.qps[qp].lags) {
            // It is held until sending resumes, and the time of its execution is not determined.
            self.loosen(qp);
            self.qps[qp].send_done.push_back(Done::maybe(Some(record.wr_id), record.seq));
            (self.qps[qp].lags, self.qps[target].early) = (true, true);
            return self.doubt_datagrams(target);
        }
        if let Some(statuses) = record.bad {
            // Its error stops the send queue (IBA 10.3.1).
            self.qps[qp].state = state::SQE;
            self.qps[qp].send_done.push_back(Done::with(Some(record.wr_id), record.seq, statuses));
            return self.arrived(qp);
        }
        let other = &self.qps[target];
        let listens = matches!(other.state, state::RTR | state::RTS | state::SQE | state::SQD);
        let (is_wanted, lags) = (listens && other.attr.qkey == qkey, self.qps[qp].lags);
        let is_taken = is_wanted && !lags && self.deliver(qp, target, &record, false);
        if !is_taken {
            // A datagram may wait for a slow receiver, and others behind it: nothing is certain until this pair is
            // reset.
            (self.qps[qp].lags, self.qps[target].early) = (true, true);
            self.qps[qp].send_done.push_back(Done::maybe(Some(record.wr_id), record.seq));
            if is_wanted {
                self.doubt_datagrams(target);
                self.doubt_rivals(target);
            }
            return;
        }
        if record.signaled {
            self.complete(qp, &record, false);
        } else {
            // Without a completion, unless it is flushed before it is sent.
            self.qps[qp].send_done.push_back(Done::maybe(Some(record.wr_id), record.seq));
        }
        self.arrived(qp);
        self.arrived(target);
    }

    /// Marks the datagrams that a pair receives as uncertain.
    pub fn doubt_datagrams(&mut self, qp: usize) {
        self.loosen(qp);
        for done in self.qps[qp].recv_done.iter_mut() {
            (done.must, done.statuses) = (false, status::ANY);
        }
    }

    /// A datagram finds no receive in a shared queue. There is no order between pairs: it may have arrived before the
    /// messages of other pairs, and have consumed their receives.
    fn doubt_rivals(&mut self, qp: usize) {
        let Some(srq) = self.qps[qp].srq else { return };
        for rival in self.live_qps().into_iter().filter(|other| *other != qp) {
            if self.qps[rival].srq == Some(srq) && !self.qps[rival].recv_done.is_empty() {
                self.doubt_datagrams(rival);
            }
        }
    }

    // --- Polling -----------------------------------------------------------------------------------------------------

    pub fn poll(&mut self, rng: &mut Rng) {
        let Some(cq) = rng.pick(&self.live_cqs()) else { return };
        let room = rng.below(5);
        self.poll_some(cq, room, rng.one_in(2));
    }

    /// Polls once for up to `room` completions. Returns their number.
    fn poll_some(&mut self, cq: usize, room: usize, by_calls: bool) -> usize {
        let ptr = self.cqs[cq].ptr;
        let mut wcs = [Wc::default(); 8];
        let room = room.min(wcs.len());
        let got = if self.cqs[cq].extended && by_calls {
            // SAFETY: a live extended queue, one thread.
            unsafe { poll_by_calls(ptr.cast(), &mut wcs[..room]) }
        } else {
            // SAFETY: a live queue.
            unsafe { inline::poll_cq(ptr, &mut wcs[..room]) }
        };
        assert!(got >= 0 && got as usize <= room, "ibv_poll_cq(cq{cq}) = {got}");
        for wc in &wcs[..got as usize] {
            self.check_completion(cq, wc);
        }
        got as usize
    }

    fn check_completion(&mut self, cq: usize, wc: &Wc) {
        let is_receive = wc.wr_id & RECEIVE != 0;
        self.say(format!(
            "cq{cq}: {} {:#x}, status {}, opcode {}, {} bytes",
            if is_receive { "receive" } else { "send" },
            wc.wr_id,
            wc.status.0,
            wc.opcode.0,
            wc.byte_len
        ));
        let of =
            |world: &Self, qp: usize| if is_receive { world.qps[qp].recv_cq } else { world.qps[qp].send_cq };
        let qp =
            self.live_qps().into_iter().find(|qp| self.qps[*qp].qp_num == wc.qp_num && of(self, *qp) == cq);
        let Some(qp) = qp else { panic!("a completion of no queue pair that lives: {wc:?}") };
        if let Some(at) = self.qps[qp].stale.iter().position(|wr_id| *wr_id == wc.wr_id) {
            let is_expected =
                |done: &Done| done.wr_id == Some(wc.wr_id) || (done.wr_id.is_none() && done.must);
            if !self.qps[qp].recv_done.iter().any(is_expected) {
                self.qps[qp].stale.swap_remove(at);
                if let Some(srq) = self.qps[qp].srq {
                    self.srqs[srq].posted.retain(|recv| recv.wr_id != wc.wr_id);
                }
                return;
            }
        }
        if is_receive { self.check_receive(qp, wc) } else { self.check_send(qp, wc) }
    }

    fn check_send(&mut self, qp: usize, wc: &Wc) {
        let done = loop {
            let Some(done) = self.qps[qp].send_done.pop_front() else {
                panic!("a completion that nothing was posted for: {wc:?}")
            };
            if done.wr_id == Some(wc.wr_id) {
                break done;
            }
            assert!(!done.must, "{wc:?} came before send {:#x?}", done.wr_id);
        };
        self.qps[qp].retired_sends = self.qps[qp].retired_sends.max(done.seq);
        check_status(&done, wc);
        if wc.status.is_success() && !done.statuses.is_empty() {
            assert_eq!(wc.opcode.0, done.opcode, "{wc:?}");
            check_effect(done.effect);
        }
    }

    fn check_receive(&mut self, qp: usize, wc: &Wc) {
        let is_shared = self.qps[qp].srq.is_some();
        let mut buffer = None;
        if let Some(srq) = self.qps[qp].srq {
            let at = self.srqs[srq].posted.iter().position(|recv| recv.wr_id == wc.wr_id);
            let Some(at) = at else { panic!("a receive that was not posted: {wc:?}") };
            let taken = self.srqs[srq].posted.remove(at);
            buffer = Some((taken.addr, taken.len));
            let claimed = &mut self.srqs[srq].claimed;
            *claimed = claimed.saturating_sub(1);
            self.check_limit(srq);
        }
        if wc.status.is_success() && self.qps[qp].qp_type == UD {
            self.bring_to_front(qp, wc.src_qp);
        }
        let Some(done) = self.qps[qp].recv_done.pop_front() else {
            assert!(is_shared && self.qps[qp].loose, "a completion that nothing arrived for: {wc:?}");
            return;
        };
        assert!(done.wr_id.is_none_or(|id| id == wc.wr_id), "{wc:?} came before receive {:#x?}", done.wr_id);
        check_status(&done, wc);
        let buffer = buffer.or(done.buffer);
        if !wc.status.is_success() || done.statuses.is_empty() {
            return;
        }
        assert_eq!(wc.opcode.0, done.opcode, "{wc:?}");
        if let Some(len) = done.byte_len {
            assert_eq!(u64::from(wc.byte_len), len, "{wc:?}");
        }
        assert_eq!(wc.wc_flags.contains(WcFlags::WITH_IMM), done.imm.is_some(), "{wc:?}");
        if let Some(imm) = done.imm {
            assert_eq!(wc.imm_data_be, imm.to_be(), "{wc:?}");
        }
        if let (Some(pattern), Some((addr, _)), Some(len)) = (done.pattern, buffer, done.byte_len) {
            let skipped = if wc.wc_flags.contains(WcFlags::GRH) { GRH_BYTES } else { 0 };
            check_effect(Some(Effect::Bytes { addr: addr + skipped, len: len - skipped, pattern }));
        }
    }

    /// Datagrams of one sender arrive in order; those of several may be interleaved. The receives that they consume
    /// are in order.
    fn bring_to_front(&mut self, qp: usize, src_qp: u32) {
        let dones = &mut self.qps[qp].recv_done;
        let Some(at) = dones.iter().position(|done| done.src_qp == src_qp) else { return };
        let receives: Vec<_> = dones.iter().map(|done| (done.wr_id, done.buffer)).collect();
        let Some(came) = dones.remove(at) else { return };
        dones.insert(0, came);
        // The receives keep their order.
        for (done, receive) in dones.iter_mut().zip(receives) {
            (done.wr_id, done.buffer) = receive;
        }
    }

    /// Polls everything until all certain completions have arrived, and then checks that there are no more.
    pub fn settle(&mut self) {
        let began = Instant::now();
        loop {
            let mut found = 0;
            for cq in self.live_cqs() {
                found += self.poll_some(cq, 8, false);
            }
            let due = |done: &Done| done.must;
            let waiting = self.live_qps().into_iter().find(|qp| {
                let pair = &self.qps[*qp];
                pair.send_done.iter().any(due) || pair.recv_done.iter().any(due)
            });
            let Some(qp) = waiting else {
                if found == 0 {
                    return;
                }
                continue;
            };
            assert!(began.elapsed() < patience(), "completions of qp{qp} that must come do not");
            std::thread::yield_now();
        }
    }

    // --- Events ------------------------------------------------------------------------------------------------------

    pub fn req_notify(&mut self, rng: &mut Rng) {
        let Some(cq) = rng.pick(&self.live_cqs()) else { return };
        let solicited = rng.one_in(4);
        let expected: &[c_int] = if self.cqs[cq].channel.is_some() { &[0] } else { &[EINVAL] };
        // SAFETY: a live queue.
        let got = unsafe { inline::req_notify_cq(self.cqs[cq].ptr, solicited.into()) };
        self.expect(format!("ibv_req_notify_cq(cq{cq}, {solicited})"), got, expected);
        let queue = &mut self.cqs[cq];
        queue.armed = queue.channel.is_some() && !solicited;
        queue.must_event = queue.must_event && queue.armed;
    }

    /// Takes the pending events of a channel; all certain events must have arrived.
    pub fn take_events(&mut self, rng: &mut Rng) {
        let Some(channel) = rng.pick(&self.live_channels()) else { return };
        // Requests that wait for a poll are executed.
        self.settle();
        let began = Instant::now();
        loop {
            let (mut cq, mut tag) = (std::ptr::null_mut(), std::ptr::null_mut());
            let ptr = self.channels[channel].ptr;
            // SAFETY: a live channel whose descriptor does not block.
            let got = unsafe { (self.library.get_cq_event)(ptr, &raw mut cq, &raw mut tag) };
            if got == 0 {
                let found = self.live_cqs().into_iter().find(|i| self.cqs[*i].ptr == cq);
                let Some(found) = found else { panic!("an event of no completion queue that lives") };
                self.say(format!("ibv_get_cq_event(ch{channel}): cq{found}"));
                assert_eq!(self.cqs[found].channel, Some(channel), "an event on another channel");
                // SAFETY: a live queue.
                assert_eq!(tag, unsafe { (*cq).cq_context }, "the queue's context");
                // SAFETY: a live queue.
                unsafe { (self.library.ack_cq_events)(cq, 1) };
                (self.cqs[found].armed, self.cqs[found].must_event) = (false, false);
                continue;
            }
            assert!(got == -1 && errno() == libc::EAGAIN, "ibv_get_cq_event: {got}, errno {}", errno());
            let due = self
                .live_cqs()
                .into_iter()
                .find(|i| self.cqs[*i].must_event && self.cqs[*i].channel == Some(channel));
            let Some(due) = due else { return };
            assert!(began.elapsed() < patience(), "the event of cq{due} does not come");
            std::thread::yield_now();
        }
    }

    /// Takes the asynchronous events of every context. All belong to live objects.
    pub fn take_async_events(&mut self) {
        const SRQ_LIMIT_REACHED: i32 = 15;
        for ctx in self.open_ctxs() {
            loop {
                // SAFETY: zero is valid for every field.
                let mut event: AsyncEvent = unsafe { zeroed() };
                let ptr = self.ctxs[ctx].ptr;
                // SAFETY: an open context whose descriptor does not block.
                let got = unsafe { (self.library.get_async_event)(ptr, &raw mut event) };
                if got != 0 {
                    assert!(got == -1 && errno() == libc::EAGAIN, "ibv_get_async_event: {got}");
                    break;
                }
                self.say(format!("ibv_get_async_event(ctx{ctx}): type {}", event.event_type));
                match event.event_type {
                    0 => assert!(self.cqs.iter().any(|cq| cq.live && cq.ptr.cast() == event.element)),
                    1..=7 | 16 => {
                        assert!(self.qps.iter().any(|qp| qp.live && qp.ptr.cast() == event.element))
                    }
                    14 | SRQ_LIMIT_REACHED => {
                        let of = |srq: &usize| self.srqs[*srq].ptr.cast() == event.element;
                        let srq = self.live_srqs().into_iter().find(of).expect("a queue that lives");
                        match self.limits_due.iter().position(|due| *due == srq) {
                            Some(at) => drop(self.limits_due.remove(at)),
                            // The receive was consumed before its completion is polled.
                            None => self.srqs[srq].limit = 0,
                        }
                    }
                    other => panic!("event {other} without a cause"),
                }
                // SAFETY: an event just taken.
                unsafe { (self.library.ack_async_event)(&raw mut event) };
            }
        }
    }

    /// Waits until all certain completions and then their events have arrived.
    pub fn settle_events(&mut self) {
        self.settle();
        self.take_async_events();
        assert!(self.limits_due.is_empty(), "no limit event of srq{:?}", self.limits_due);
    }
}

fn check_status(done: &Done, wc: &Wc) {
    let fits = done.statuses.is_empty() || done.statuses.contains(&wc.status.0);
    assert!(
        fits,
        "{wc:?}: not one of {:?}",
        done.statuses.iter().map(|status| WcStatus(*status)).collect::<Vec<_>>()
    );
}

fn check_effect(effect: Option<Effect>) {
    // SAFETY: memory of the world, which no outstanding request refers to.
    unsafe {
        match effect {
            Some(Effect::Bytes { addr, len, pattern }) => {
                let bytes = std::slice::from_raw_parts(addr as *const u8, len as usize);
                assert!(
                    bytes.iter().all(|byte| *byte == pattern),
                    "{bytes:x?} are not {len} times {pattern:#x}"
                );
            }
            Some(Effect::Words { result_at, result, target_at, target }) => {
                assert_eq!((result_at as *const u64).read(), result, "what an atomic found");
                assert_eq!((target_at as *const u64).read(), target, "what an atomic left");
            }
            None => {}
        }
    }
}

/// `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll`: up to the length of `wcs`.
///
/// # Safety
/// `cq` must be a live extended queue that no other thread polls.
unsafe fn poll_by_calls(cq: *mut CqEx, wcs: &mut [Wc]) -> i32 {
    let mut attr = 0_u32;
    let mut count = 0;
    // SAFETY: contract of this function: the queue is live. It was created with these functions.
    unsafe {
        while count < wcs.len() {
            let got = if count == 0 { ((*cq).start_poll)(cq, &raw mut attr) } else { ((*cq).next_poll)(cq) };
            if got == libc::ENOENT {
                break;
            }
            assert_eq!(got, 0, "ibv_start_poll");
            let mut wc = Wc { wr_id: (*cq).wr_id, ..Wc::default() };
            wc.status = WcStatus((*cq).status);
            wc.opcode = farcall_verbs::WcOpcode(((*cq).read_opcode)(cq));
            wc.qp_num = ((*cq).read_qp_num)(cq);
            wc.byte_len = ((*cq).read_byte_len)(cq);
            wc.imm_data_be = ((*cq).read_imm_data)(cq);
            wc.wc_flags = WcFlags::from_bits_retain(((*cq).read_wc_flags)(cq));
            wcs[count] = wc;
            count += 1;
        }
        if count > 0 {
            ((*cq).end_poll)(cq);
        }
    }
    count as i32
}
