//! Posting of valid and invalid requests, by structures and by builder calls.

use std::ffi::{c_int, c_void};
use std::ptr;

use farcall_layout::{DataBuf, QpEx};
use farcall_verbs::{AtomicTarget, RecvWr, SendFlags, SendWr, Sge, UdTarget, WrOpcode};
use libc::{EINVAL, ENOMEM, EOPNOTSUPP};

use crate::library::inline;
use crate::world::{
    Action, Done, Effect, RC, RECEIVE, RecvRecord, Rng, SendRecord, UC, UD, World, state, status,
};

const LOCAL_WRITE: u32 = 1;
const GRH_BYTES: u64 = 40;
/// Every receive is long enough for every message.
const RECV_BYTES: u64 = 256 + GRH_BYTES;

/// A request with the errors that posting it may return; none if it is valid.
pub struct Planned {
    pub record: SendRecord,
    pub sges: Vec<Sge>,
    pub inline: bool,
    pub opcode: WrOpcode,
    pub remote: (u64, u32, u64, u64),
    pub ud: Option<(*mut c_void, usize, u32, u32)>,
    pub defect: Option<&'static [c_int]>,
}

impl World {
    fn mr_with(&self, rng: &mut Rng, pd: usize, needs: u32) -> Option<usize> {
        let fit = |mr: &usize| self.mrs[*mr].pd == pd && self.mrs[*mr].access & needs == needs;
        rng.pick(&self.live_mrs().into_iter().filter(fit).collect::<Vec<_>>())
    }

    fn fill(addr: u64, len: u64, pattern: u8) {
        // SAFETY: a slot of the world's memory that nothing else uses.
        unsafe { ptr::write_bytes(addr as *mut u8, pattern, len as usize) }
    }

    fn word_at(addr: u64, value: u64) {
        // SAFETY: a slot of the world's memory that nothing else uses, aligned to 64 bytes.
        unsafe { (addr as *mut u64).write(value) }
    }

    // --- Receives ----------------------------------------------------------------------------------------------------

    fn plan_receive(&mut self, rng: &mut Rng, pd: usize) -> Option<(RecvRecord, u32)> {
        let mr = self.mr_with(rng, pd, LOCAL_WRITE)?;
        let addr = self.slot(mr, RECV_BYTES)?;
        Some((RecvRecord { wr_id: self.wr_id() | RECEIVE, addr, len: RECV_BYTES }, self.mrs[mr].lkey))
    }

    /// Posts a chain of receives, one of which may have too many elements. Their keys and bounds are not checked
    /// before a message arrives.
    fn post_receives(
        &mut self,
        rng: &mut Rng,
        place: &str,
        pd: usize,
        room: Room,
        post: impl Fn(*mut RecvWr<'static>, *mut *mut RecvWr<'static>) -> c_int,
    ) -> Option<Vec<RecvRecord>> {
        let count = 1 + rng.below(4);
        let spoilt = rng.one_in(8).then(|| rng.below(count));
        let mut records = Vec::new();
        let mut lists: Vec<Vec<Sge>> = Vec::new();
        for i in 0..count {
            let (record, lkey) = self.plan_receive(rng, pd)?;
            let mut list = vec![Sge { addr: record.addr, length: record.len as u32, lkey }];
            if spoilt == Some(i) {
                list = vec![list[0]; room.max_sge as usize + 1];
            }
            records.push(record);
            lists.push(list);
        }
        let mut wrs: Vec<RecvWr<'static>> = Vec::new();
        for (list, record) in lists.iter().zip(&records) {
            // SAFETY: the lists outlive the post; only the C type requires the longer lifetime.
            let list: &'static [Sge] = unsafe { std::slice::from_raw_parts(list.as_ptr(), list.len()) };
            wrs.push(RecvWr::new(record.wr_id, list));
        }
        for i in 1..count {
            wrs[i - 1].next = &raw const wrs[i];
        }
        let first_bad = spoilt.unwrap_or(count);
        let posted = if room.usable { first_bad.min(room.free) } else { 0 };
        let mut bad: *mut RecvWr<'static> = ptr::null_mut();
        let got = post(wrs.as_mut_ptr(), &raw mut bad);
        let allowed: &[c_int] = match () {
            () if !room.usable => &[EINVAL],
            () if posted == count => &[0],
            () if posted == room.free && posted == first_bad => &[ENOMEM, EINVAL],
            () if posted == room.free => &[ENOMEM],
            () => &[EINVAL],
        };
        self.expect(format!("ibv_post_recv({place}, {count} receives)"), got, allowed);
        if got != 0 {
            assert!(ptr::eq(bad, &raw const wrs[posted]), "bad_wr is not receive {posted} of {count}");
        }
        records.truncate(posted);
        Some(records)
    }

    pub fn post_recv(&mut self, rng: &mut Rng) {
        let Some(qp) = rng.pick(&self.live_qps()) else { return };
        let model = &self.qps[qp];
        if model.loose {
            return;
        }
        let usable = model.state != state::RESET && model.srq.is_none();
        let held = model.recvs.len() + model.recv_done.len();
        let free = (model.cap.max_recv_wr as usize).saturating_sub(held);
        let room = Room { usable, free, max_sge: model.cap.max_recv_sge };
        let (ptr, pd) = (model.ptr, model.pd);
        // SAFETY: a live pair; the chain is complete.
        let post = |wr, bad| unsafe { inline::post_recv(ptr, wr, bad) };
        let Some(records) = self.post_receives(rng, &format!("qp{qp}"), pd, room, post) else { return };
        let is_flushed = self.qps[qp].state == state::ERR;
        for record in records {
            if is_flushed {
                self.qps[qp].recv_done.push_back(Done::with(Some(record.wr_id), 0, status::FLUSH));
            } else {
                self.qps[qp].recvs.push_back(record);
            }
        }
        if is_flushed {
            self.arrived(qp);
        }
        if let Some(partner) = self.partner(qp) {
            self.progress(partner);
        }
    }

    pub fn post_srq_recv(&mut self, rng: &mut Rng) {
        let Some(srq) = rng.pick(&self.live_srqs()) else { return };
        let model = &self.srqs[srq];
        if model.loose || model.claimed > 0 {
            // It is not determined when the waiting messages consume their receives, and therefore how many are free.
            return;
        }
        let free = (model.max_wr as usize).saturating_sub(model.posted.len());
        let room = Room { usable: true, free, max_sge: model.max_sge };
        let (ptr, pd) = (model.ptr, model.pd);
        // SAFETY: a live queue; the chain is complete.
        let post = |wr, bad| unsafe { inline::post_srq_recv(ptr, wr, bad) };
        let Some(records) = self.post_receives(rng, &format!("srq{srq}"), pd, room, post) else { return };
        self.srqs[srq].posted.extend(records);
        let takers: Vec<usize> =
            self.live_qps().into_iter().filter(|qp| self.qps[*qp].srq == Some(srq)).collect();
        let hungry: Vec<usize> = takers
            .iter()
            .filter_map(|qp| self.partner(*qp))
            .filter(|sender| !self.qps[*sender].sends.is_empty())
            .collect();
        if hungry.len() > 1 {
            // It is not determined which of them is served first.
            hungry.iter().for_each(|sender| self.loosen(*sender));
        } else if let Some(sender) = hungry.first() {
            self.progress(*sender);
        }
    }

    // --- Sends -------------------------------------------------------------------------------------------------------

    /// A request that is valid for the pair, or has one defect.
    fn plan_send(&mut self, rng: &mut Rng, qp: usize) -> Option<Planned> {
        let (qp_type, pd, cap) = (self.qps[qp].qp_type, self.qps[qp].pd, self.qps[qp].cap);
        let action = match qp_type {
            UD => Action::Send,
            RC => rng.of(&[
                Action::Send,
                Action::Send,
                Action::Write,
                Action::Read,
                Action::CompareSwap,
                Action::FetchAdd,
            ]),
            _ => rng.of(&[Action::Send, Action::Write]),
        };
        let returns_data = matches!(action, Action::Read | Action::CompareSwap | Action::FetchAdd);
        let is_atomic = matches!(action, Action::CompareSwap | Action::FetchAdd);
        let mr = self.mr_with(rng, pd, if returns_data { LOCAL_WRITE } else { 0 })?;
        let inline = !returns_data && rng.one_in(3);
        let len = match () {
            () if is_atomic => 8,
            () if inline => rng.below(cap.max_inline_data as usize + 1).min(256) as u64,
            () => rng.below(257) as u64,
        };
        let addr = self.slot(mr, len)?;
        let pattern = 1 + rng.below(255) as u8;
        Self::fill(addr, len, if returns_data { 0 } else { pattern });
        let wr_id = self.wr_id();
        let signaled = self.qps[qp].signal_all || rng.one_in(2);
        let imm =
            (matches!(action, Action::Send | Action::Write) && rng.one_in(3)).then(|| rng.next() as u32);
        let record =
            SendRecord { wr_id, seq: 0, action, imm, signaled, len, pattern, bad: None, effect: None };
        let lkey = self.mrs[mr].lkey;
        let sges = vec![Sge { addr, length: len as u32, lkey: if inline { 0x7777 } else { lkey } }];
        let opcode = match (action, imm) {
            (Action::Send, None) => WrOpcode::SEND,
            (Action::Send, Some(_)) => WrOpcode::SEND_WITH_IMM,
            (Action::Write, None) => WrOpcode::WRITE,
            (Action::Write, Some(_)) => WrOpcode::WRITE_WITH_IMM,
            (Action::Read, _) => WrOpcode::READ,
            (Action::CompareSwap, _) => WrOpcode::ATOMIC_CMP_AND_SWP,
            (Action::FetchAdd, _) => WrOpcode::ATOMIC_FETCH_AND_ADD,
        };
        let mut planned =
            Planned { record, sges, inline, opcode, remote: (0, 0, 0, 0), ud: None, defect: None };
        if action != Action::Send {
            self.plan_remote(rng, qp, addr, &mut planned)?;
        }
        if qp_type == UD {
            self.plan_datagram(rng, qp, &mut planned)?;
        }
        self.plan_defect(rng, qp, &mut planned);
        Some(planned)
    }

    /// Selects the target of a one-sided request, and its expected contents.
    fn plan_remote(&mut self, rng: &mut Rng, qp: usize, local: u64, planned: &mut Planned) -> Option<()> {
        let target = self.partner(qp).unwrap_or(qp);
        let (len, pattern, action) = (planned.record.len, planned.record.pattern, planned.record.action);
        let mr = self.mr_with(rng, self.qps[target].pd, 0)?;
        let addr = self.slot(mr, len.max(8))?;
        let mut rkey = self.mrs[mr].rkey;
        let need = match action {
            Action::Write => 2,
            Action::Read => 4,
            _ => 8,
        };
        if self.qps[target].attr.qp_access_flags & need == 0 {
            planned.record.bad = Some(status::NOT_ACCEPTED);
        } else if self.mrs[mr].access & need == 0 && len > 0 {
            planned.record.bad = Some(status::REM_ACCESS);
        } else if len > 0 && rng.one_in(12) {
            (rkey, planned.record.bad) = (0xdead_0002, Some(status::REM_ACCESS));
        }
        let (old, operand, swap) = (rng.next(), rng.next(), rng.next());
        let compare = if rng.one_in(2) { old } else { operand };
        planned.record.effect = Some(match action {
            Action::Write => Effect::Bytes { addr, len, pattern },
            Action::Read => {
                Self::fill(addr, len, pattern);
                Effect::Bytes { addr: local, len, pattern }
            }
            Action::CompareSwap => {
                Self::word_at(addr, old);
                let target = if compare == old { swap } else { old };
                Effect::Words { result_at: local, result: old, target_at: addr, target }
            }
            _ => {
                Self::word_at(addr, old);
                Effect::Words {
                    result_at: local,
                    result: old,
                    target_at: addr,
                    target: old.wrapping_add(operand),
                }
            }
        });
        let compare_add = if action == Action::CompareSwap { compare } else { operand };
        planned.remote = (addr, rkey, compare_add, swap);
        Some(())
    }

    fn plan_datagram(&mut self, rng: &mut Rng, qp: usize, planned: &mut Planned) -> Option<()> {
        let pd = self.qps[qp].pd;
        let handles: Vec<usize> = self.live_ahs().into_iter().filter(|ah| self.ahs[*ah].pd == pd).collect();
        let ah = rng.pick(&handles)?;
        let targets: Vec<usize> =
            self.live_qps().into_iter().filter(|other| self.qps[*other].qp_type == UD).collect();
        let target = rng.pick(&targets)?;
        let qkey = if rng.one_in(8) { 0x2222 } else { 0x1111 };
        planned.ud = Some((self.ahs[ah].ptr.cast(), target, self.qps[target].qp_num, qkey));
        Some(())
    }

    /// Sometimes adds one defect that posting detects, or that makes the request fail.
    fn plan_defect(&mut self, rng: &mut Rng, qp: usize, planned: &mut Planned) {
        let cap = self.qps[qp].cap;
        match rng.below(24) {
            0 if !planned.inline => {
                planned.sges = vec![planned.sges[0]; cap.max_send_sge as usize + 1];
                planned.defect = Some(&[EINVAL]);
            }
            1 if planned.inline => {
                planned.sges[0].length = cap.max_inline_data + 1;
                planned.defect = Some(&[EINVAL, ENOMEM]);
            }
            // If the request returns data, the target's refusal takes precedence.
            2 if !planned.inline
                && planned.record.len > 0
                && (planned.record.bad.is_none() || !planned.opcode.returns_data()) =>
            {
                planned.sges[0].lkey = 0xdead_0003;
                planned.record.bad = Some(status::LOC_PROT);
            }
            3 => {
                // Memory windows, invalidation, segmentation, driver-specific and invalid opcodes.
                planned.opcode = WrOpcode(rng.of(&[7, 8, 9, 10, 11, 55]));
                planned.defect = Some(&[EOPNOTSUPP, EINVAL]);
            }
            4 if self.qps[qp].qp_type == UD && self.qps[qp].state == state::RTS => {
                planned.opcode = WrOpcode::WRITE;
                planned.remote = (0x10, 0x20, 0, 0);
                planned.record.bad = Some(status::LOC_QP_OP);
            }
            // Flushed requests are not checked.
            5 if self.qps[qp].qp_type == UD && self.qps[qp].state == state::RTS => {
                if let Some(ud) = &mut planned.ud {
                    ud.0 = ptr::null_mut();
                }
                planned.defect = Some(&[EINVAL]);
            }
            6 if matches!(planned.record.action, Action::CompareSwap | Action::FetchAdd) => {
                planned.sges[0].length = 4;
                planned.defect = Some(&[EINVAL]);
            }
            _ => {}
        }
    }

    fn request(planned: &Planned) -> SendWr<'static> {
        // SAFETY: the list outlives the post; only the C type requires the longer lifetime.
        let sges: &'static [Sge] =
            unsafe { std::slice::from_raw_parts(planned.sges.as_ptr(), planned.sges.len()) };
        let id = planned.record.wr_id;
        let (remote_addr, rkey, compare_add, swap) = planned.remote;
        let mut wr = match planned.record.action {
            Action::Send => match planned.ud {
                Some((ah, _, remote_qpn, remote_qkey)) => SendWr::send_to(
                    id,
                    sges,
                    UdTarget { ah: ah.cast_const().cast(), remote_qpn, remote_qkey },
                ),
                None => SendWr::send(id, sges),
            },
            Action::Write => SendWr::write(id, sges, remote_addr, rkey),
            Action::Read => SendWr::read(id, sges, remote_addr, rkey),
            _ => SendWr::atomic(
                planned.opcode,
                id,
                sges,
                AtomicTarget { remote_addr, compare_add, swap, rkey },
            ),
        };
        if planned.ud.is_some() && planned.opcode == WrOpcode::WRITE {
            // The union does not contain an address handle.
            wr = SendWr::write(id, sges, remote_addr, rkey);
        }
        wr.opcode = planned.opcode;
        wr.imm_data_be = planned.record.imm.unwrap_or(0).to_be();
        if planned.record.signaled {
            wr.send_flags |= SendFlags::SIGNALED;
        }
        if planned.inline {
            wr.send_flags |= SendFlags::INLINE;
        }
        wr
    }

    /// Returns how many of the requests must be accepted, how many can be, and the possible errors of the first
    /// refused one.
    fn verdict(&self, qp: usize, planned: &[Planned]) -> (usize, usize) {
        let model = &self.qps[qp];
        if !matches!(model.state, state::RTS | state::SQD | state::SQE | state::ERR) {
            return (0, 0);
        }
        let cap = model.cap.max_send_wr as usize;
        let good = planned.iter().position(|one| one.defect.is_some()).unwrap_or(planned.len());
        // A slot is certainly occupied by a request that has not completed or was not polled, and certainly free after
        // a later completion was polled.
        let surely_taken = model.sends.len() + model.send_done.iter().filter(|done| done.must).count();
        let maybe_taken = (model.posted_sends - model.retired_sends) as usize;
        // A request that succeeds without a completion may have freed its slot at once.
        let is_flushed = matches!(model.state, state::ERR | state::SQE);
        let mut taken = surely_taken;
        let may = planned.iter().take(good).take_while(|one| {
            let fits = taken < cap;
            taken += usize::from(one.record.signaled || is_flushed);
            fits
        });
        (good.min(cap.saturating_sub(maybe_taken)), may.count())
    }

    fn took(&mut self, qp: usize, planned: Vec<Planned>, count: usize) {
        for mut one in planned.into_iter().take(count) {
            self.qps[qp].posted_sends += 1;
            one.record.seq = self.qps[qp].posted_sends;
            if matches!(self.qps[qp].state, state::ERR | state::SQE) {
                let done = Done::with(Some(one.record.wr_id), one.record.seq, status::FLUSH);
                self.qps[qp].send_done.push_back(done);
                self.arrived(qp);
            } else if self.qps[qp].qp_type == UD {
                self.datagram(qp, one);
            } else if self.qps[qp].qp_type == UC || self.partner(qp).is_none_or(|other| self.qps[other].loose)
            {
                // Delivery over an unreliable connection is checked by the conformance suite.
                let done = Done::maybe(Some(one.record.wr_id), one.record.seq);
                self.qps[qp].send_done.push_back(done);
                self.loosen(qp);
            } else {
                self.qps[qp].sends.push_back(one.record);
            }
        }
        self.progress(qp);
    }

    pub fn post_send(&mut self, rng: &mut Rng) {
        let Some(qp) = rng.pick(&self.live_qps()) else { return };
        if self.qps[qp].loose {
            return;
        }
        let count = if rng.one_in(4) { 1 + rng.below(20) } else { 1 + rng.below(2) };
        let planned: Option<Vec<Planned>> = (0..count).map(|_| self.plan_send(rng, qp)).collect();
        let Some(mut planned) = planned else { return };
        if self.qps[qp].qp_type == UD {
            // Requests after a failing datagram are flushed without being checked.
            let failing = planned.iter().position(|one| one.record.bad.is_some());
            planned.truncate(failing.map_or(planned.len(), |at| at + 1));
        }
        let count = planned.len();
        if self.qps[qp].extended && rng.one_in(2) {
            return self.post_by_calls(rng, qp, planned);
        }
        let (must, may) = self.verdict(qp, &planned);
        let mut wrs: Vec<SendWr<'static>> = planned.iter().map(Self::request).collect();
        for i in 1..count {
            wrs[i - 1].next = &raw const wrs[i];
        }
        let mut bad: *mut SendWr<'static> = ptr::null_mut();
        // SAFETY: a live pair; the chain is complete, and its memory is the world's.
        let got = unsafe { inline::post_send(self.qps[qp].ptr, wrs.as_mut_ptr(), &raw mut bad) };
        let taken = if got == 0 {
            count
        } else {
            wrs.iter().position(|wr| ptr::eq(wr, bad)).expect("bad_wr is one of the chain")
        };
        let in_state = self.in_sending_state(qp);
        let mut allowed = Vec::new();
        if taken == count && may == count {
            allowed.push(0);
        }
        if !in_state && taken == 0 {
            allowed.push(EINVAL);
        }
        if in_state && taken < count {
            if let Some(defect) = planned[taken].defect {
                allowed.extend(defect);
            }
            let model = &self.qps[qp];
            if (model.posted_sends - model.retired_sends) as usize + taken >= model.cap.max_send_wr as usize {
                allowed.push(ENOMEM);
            }
        }
        let described: Vec<String> = planned.iter().map(describe).collect();
        self.expect(format!("ibv_post_send(qp{qp}, [{}])", described.join(", ")), got, &allowed);
        assert!((must..=may).contains(&taken), "{taken} taken, not {must} to {may}");
        self.took(qp, planned, taken);
    }

    fn in_sending_state(&self, qp: usize) -> bool {
        matches!(self.qps[qp].state, state::RTS | state::SQD | state::SQE | state::ERR)
    }

    /// `man ibv_wr_post`: all or nothing.
    fn post_by_calls(&mut self, rng: &mut Rng, qp: usize, mut planned: Vec<Planned>) {
        // Only operations that have a builder call can be requested.
        planned.retain(|one| one.opcode.0 <= 6 && !(one.ud.is_some() && one.opcode == WrOpcode::WRITE));
        planned.retain(|one| one.ud.is_none_or(|ud| !ud.0.is_null()));
        let (must, may) = self.verdict(qp, &planned);
        let (library, count) = (self.library, planned.len());
        let is_aborted = rng.one_in(6);
        // SAFETY: a live extended pair, used by one thread; lists and bytes outlive the critical region.
        let got = unsafe {
            let ex = (library.ibv_qp_to_qp_ex)(self.qps[qp].ptr);
            ((*ex).wr_start)(ex);
            for one in &planned {
                build(ex, one, rng);
                if rng.one_in(8) {
                    // Other calls are permitted in between.
                    self.query(qp);
                }
            }
            if is_aborted {
                ((*ex).wr_abort)(ex);
                0
            } else {
                ((*ex).wr_complete)(ex)
            }
        };
        let described: Vec<String> = planned.iter().map(describe).collect();
        let call = format!("wr_complete(qp{qp}, [{}])", described.join(", "));
        if is_aborted {
            return self.say(format!("wr_abort after {call}"));
        }
        let mut allowed = Vec::new();
        if may == count || (count == 0) {
            allowed.push(0);
        }
        if must < count {
            allowed.extend(planned.iter().filter_map(|one| one.defect).flatten());
            if self.in_sending_state(qp) { allowed.push(ENOMEM) } else { allowed.push(EINVAL) }
        }
        self.expect(call, got, &allowed);
        self.took(qp, planned, if got == 0 { count } else { 0 });
    }
}

/// Number of free slots of a receive queue, and whether it can be posted to.
struct Room {
    usable: bool,
    free: usize,
    max_sge: u32,
}

fn describe(planned: &Planned) -> String {
    let record = &planned.record;
    let mut words = format!("opcode {} {} bytes", planned.opcode.0, record.len);
    for (is, word) in [
        (record.signaled, " signaled"),
        (planned.inline, " inline"),
        (record.bad.is_some(), " will fail"),
        (planned.defect.is_some(), " spoilt"),
    ] {
        if is {
            words.push_str(word);
        }
    }
    if let Some((_, target, ..)) = planned.ud {
        words.push_str(&format!(" to qp{target}"));
    }
    words
}

/// Builds one request by the builder and its setters.
///
/// # Safety
/// Must be called within the critical region of `ex`.
unsafe fn build(ex: *mut QpEx, planned: &Planned, rng: &mut Rng) {
    let (remote_addr, rkey, compare_add, swap) = planned.remote;
    let imm_be = planned.record.imm.unwrap_or(0).to_be();
    // SAFETY: contract of this function: this thread has begun a batch. The pair was created with these operations.
    unsafe {
        (*ex).wr_id = planned.record.wr_id;
        (*ex).wr_flags = if planned.record.signaled { 2 } else { 0 };
        match planned.opcode {
            WrOpcode::SEND => ((*ex).wr_send)(ex),
            WrOpcode::SEND_WITH_IMM => ((*ex).wr_send_imm)(ex, imm_be),
            WrOpcode::WRITE => ((*ex).wr_rdma_write)(ex, rkey, remote_addr),
            WrOpcode::WRITE_WITH_IMM => ((*ex).wr_rdma_write_imm)(ex, rkey, remote_addr, imm_be),
            WrOpcode::READ => ((*ex).wr_rdma_read)(ex, rkey, remote_addr),
            WrOpcode::ATOMIC_CMP_AND_SWP => {
                ((*ex).wr_atomic_cmp_swp)(ex, rkey, remote_addr, compare_add, swap);
            }
            _ => ((*ex).wr_atomic_fetch_add)(ex, rkey, remote_addr, compare_add),
        }
        if let Some((ah, _, remote_qpn, remote_qkey)) = planned.ud {
            ((*ex).wr_set_ud_addr)(ex, ah.cast(), remote_qpn, remote_qkey);
        }
        match (planned.inline, planned.sges.as_slice(), rng.one_in(2)) {
            (true, [sge], true) => {
                ((*ex).wr_set_inline_data)(ex, sge.addr as *mut c_void, sge.length as usize)
            }
            (true, sges, _) => {
                let pieces: Vec<DataBuf> = sges
                    .iter()
                    .map(|sge| DataBuf { addr: sge.addr as *mut c_void, length: sge.length as usize })
                    .collect();
                ((*ex).wr_set_inline_data_list)(ex, pieces.len(), pieces.as_ptr());
            }
            (false, [sge], true) => ((*ex).wr_set_sge)(ex, sge.lkey, sge.addr, sge.length),
            (false, sges, _) => ((*ex).wr_set_sge_list)(ex, sges.len(), sges.as_ptr()),
        }
    }
}
