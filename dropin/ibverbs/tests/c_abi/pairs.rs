//! Queue pairs: creation, every transition, queries, destruction.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr;

use farcall_layout::{Qp, QpAttr, QpCap, QpInitAttr, QpInitAttrEx, mask};
use libc::{EINVAL, EOPNOTSUPP};

use crate::library::{clear_errno, inline, zeroed};
use crate::table;
use crate::world::{Done, QpModel, RC, Rng, UC, UD, World, state, status};

/// Names of states, for messages.
pub const STATES: [&str; 8] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR", "?"];

const MAX_RD_ATOMIC: u8 = 128;
const MASK_PD: u32 = 1;
const MASK_SEND_OPS: u32 = 1 << 6;

impl World {
    fn of_context(&self, among: Vec<usize>, ctx: usize, of: impl Fn(&Self, usize) -> usize) -> Vec<usize> {
        among.into_iter().filter(|i| of(self, *i) == ctx).collect()
    }

    pub fn create_qp(&mut self, rng: &mut Rng) {
        let Some(pd) = rng.pick(&self.live_pds()) else { return };
        let ctx = self.pds[pd].ctx;
        let cqs = self.of_context(self.live_cqs(), ctx, |world, cq| world.cqs[cq].ctx);
        let srqs = self.of_context(self.live_srqs(), ctx, |world, srq| world.pds[world.srqs[srq].pd].ctx);
        let (Some(send_cq), Some(recv_cq)) = (rng.pick(&cqs), rng.pick(&cqs)) else { return };
        let limits = self.limits(ctx);
        let (mut qp_type, mut verdict) = (rng.of(&[RC, RC, RC, UC, UD, UD]), 0);
        let srq = if qp_type != UC && rng.one_in(3) { rng.pick(&srqs) } else { None };
        let mut cap = QpCap {
            max_send_wr: 1 + rng.below(8) as u32,
            max_recv_wr: 1 + rng.below(8) as u32,
            max_send_sge: 1 + rng.below(3) as u32,
            max_recv_sge: 1 + rng.below(3) as u32,
            max_inline_data: rng.below(64) as u32,
        };
        match rng.below(24) {
            // Raw packets, XRC, driver-specific types, invalid types.
            0 => (qp_type, verdict) = (rng.of(&[8, 9, 10, 0xff, 1, 77]), EOPNOTSUPP),
            1 => (cap.max_send_wr, verdict) = (limits.max_qp_wr as u32 + 1, EINVAL),
            2 => (cap.max_send_sge, verdict) = (limits.max_sge as u32 + 1, EINVAL),
            3 => (cap.max_inline_data, verdict) = (1 << 20, EINVAL),
            4 if srq.is_none() => (cap.max_recv_wr, verdict) = (u32::MAX, EINVAL),
            5 if srq.is_none() => (cap.max_recv_sge, verdict) = (u32::MAX, EINVAL),
            _ => {}
        }
        let signal_all = rng.one_in(2);
        // SAFETY: zero is valid for every field.
        let mut attr: QpInitAttrEx = unsafe { zeroed() };
        (attr.qp_context, attr.qp_type) = (ptr::without_provenance_mut(self.qps.len() + 1), qp_type);
        (attr.send_cq, attr.recv_cq) = (self.cqs[send_cq].ptr, self.cqs[recv_cq].ptr);
        attr.srq = srq.map_or(ptr::null_mut(), |srq| self.srqs[srq].ptr);
        (attr.cap, attr.sq_sig_all) = (cap, signal_all.into());
        if verdict == 0 && rng.one_in(20) {
            (attr.send_cq, verdict) = (ptr::null_mut(), EINVAL);
        }
        let extended = rng.one_in(2);
        clear_errno();
        let ptr = if extended {
            attr.pd = self.pds[pd].ptr;
            attr.comp_mask = MASK_PD | MASK_SEND_OPS;
            attr.send_ops_flags = match qp_type {
                RC => 0x7f,
                UC => 0xf & !4,
                _ => 0xc,
            };
            verdict = self.spoil_extended(rng, &mut attr, verdict);
            // SAFETY: an open context, a complete structure of live objects.
            unsafe { inline::create_qp_ex(self.ctxs[ctx].ptr, &raw mut attr) }
        } else {
            // SAFETY: a live domain; the extended structure begins like the plain one.
            unsafe { (self.library.create_qp)(self.pds[pd].ptr, (&raw mut attr).cast()) }
        };
        let call = format!(
            "qp{} = ibv_create_qp{}(pd{pd}, cq{send_cq}, cq{recv_cq}, srq {srq:?}, type {qp_type}, {} {} sge {} {} \
             inline {}, all signaled {signal_all})",
            self.qps.len(),
            if extended { "_ex" } else { "" },
            cap.max_send_wr,
            cap.max_recv_wr,
            cap.max_send_sge,
            cap.max_recv_sge,
            cap.max_inline_data,
        );
        if !self.expect_made(call, ptr, &[verdict]) {
            return;
        }
        let granted = attr.cap;
        assert!(granted.max_send_wr >= cap.max_send_wr && granted.max_send_sge >= cap.max_send_sge);
        assert!(granted.max_inline_data >= cap.max_inline_data);
        if srq.is_none() {
            assert!(granted.max_recv_wr >= cap.max_recv_wr && granted.max_recv_sge >= cap.max_recv_sge);
        }
        // SAFETY: just made.
        let qp_num = unsafe {
            assert!(
                (*ptr).state == state::RESET && (*ptr).qp_type == qp_type && (*ptr).pd == self.pds[pd].ptr
            );
            assert!(
                (*ptr).send_cq == attr.send_cq && (*ptr).recv_cq == attr.recv_cq && (*ptr).srq == attr.srq
            );
            assert_eq!((*ptr).qp_context, attr.qp_context);
            // The extended pair exists only if its operations were requested (man ibv_wr_post).
            assert_eq!((self.library.ibv_qp_to_qp_ex)(ptr).is_null(), !extended);
            (*ptr).qp_num
        };
        // SAFETY: zero is valid for every field.
        let fresh: QpAttr = unsafe { zeroed() };
        self.qps.push(QpModel {
            ptr,
            extended,
            ctx,
            pd,
            send_cq,
            recv_cq,
            srq,
            qp_type,
            qp_num,
            cap: granted,
            signal_all,
            live: true,
            state: state::RESET,
            attr: QpAttr { cap: granted, ..fresh },
            link: None,
            dest: 0,
            loose: false,
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            send_done: VecDeque::new(),
            recv_done: VecDeque::new(),
            stale: Vec::new(),
            early: false,
            lags: false,
            posted_sends: 0,
            retired_sends: 0,
        });
    }

    /// Sometimes requests an unsupported feature.
    fn spoil_extended(&mut self, rng: &mut Rng, attr: &mut QpInitAttrEx, verdict: c_int) -> c_int {
        if verdict != 0 {
            return verdict;
        }
        match rng.below(16) {
            // Unknown masks and flags, hash functions, multicast loopback, memory windows.
            0 => attr.comp_mask |= 1 << 20,
            1 => attr.comp_mask |= 1 << 5,
            2 => (attr.comp_mask, attr.create_flags) = (attr.comp_mask | 1 << 2, 1 << 1),
            3 => attr.send_ops_flags |= 1 << 7,
            4 if attr.qp_type == UD => attr.send_ops_flags |= 1,
            5 if attr.qp_type == UC => attr.send_ops_flags |= 1 << 4,
            _ => return 0,
        }
        EOPNOTSUPP
    }

    // --- States ------------------------------------------------------------------------------------------------------

    /// Returns attributes that are valid for `bits` and the peer `dest`.
    fn good_attributes(&self, qp: usize, to: u32, dest: u32, rng: &mut Rng) -> QpAttr {
        let mut attr = QpAttr { qp_state: to, cur_qp_state: self.qps[qp].state, ..QpAttr::default() };
        (attr.port_num, attr.pkey_index, attr.qp_access_flags) = (1, 0, 0xf);
        attr.qkey = 0x1111;
        attr.ah_attr = self.own_path(self.qps[qp].ctx);
        attr.path_mtu = 1 + rng.below(5) as u32;
        attr.dest_qp_num = dest;
        (attr.rq_psn, attr.sq_psn) = (rng.below(1 << 24) as u32, rng.below(1 << 24) as u32);
        (attr.max_dest_rd_atomic, attr.max_rd_atomic) = (1 + rng.below(16) as u8, 1 + rng.below(16) as u8);
        (attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry) = (1, 14, 7, 7);
        attr
    }

    /// Calls `ibv_modify_qp` and updates the model.
    fn modify(&mut self, qp: usize, attr: &mut QpAttr, bits: c_int, allowed: &[c_int]) -> bool {
        let from = self.qps[qp].state;
        // SAFETY: a live pair, a complete structure.
        let got = unsafe { (self.library.modify_qp)(self.qps[qp].ptr, attr, bits) };
        let to = if bits & mask::STATE != 0 { attr.qp_state } else { from };
        let (from_name, to_name) = (STATES[from as usize], STATES[to.min(7) as usize]);
        self.expect(format!("ibv_modify_qp(qp{qp}, {from_name} to {to_name}, {bits:#x})"), got, allowed);
        if got == 0 {
            table::remember(&mut self.qps[qp].attr, attr, bits);
            self.qps[qp].state = to;
            if to != from {
                self.entered(qp, from, to);
            }
        }
        self.query(qp);
        got == 0
    }

    /// Applies a transition to the posted requests.
    fn entered(&mut self, qp: usize, from: u32, to: u32) {
        match to {
            state::RESET => {
                self.cut(qp);
                self.forget_posted(qp);
                (self.qps[qp].loose, self.qps[qp].lags) = (false, false);
                self.qps[qp].dest = 0;
            }
            state::ERR if from != state::ERR => {
                self.cut(qp);
                let is_loose = self.qps[qp].loose;
                let pair = &mut self.qps[qp];
                let flushed = |wr_id, seq| {
                    if is_loose {
                        Done::maybe(Some(wr_id), seq)
                    } else {
                        Done::with(Some(wr_id), seq, status::FLUSH)
                    }
                };
                for send in std::mem::take(&mut pair.sends) {
                    pair.send_done.push_back(flushed(send.wr_id, send.seq));
                }
                for recv in std::mem::take(&mut pair.recvs) {
                    pair.recv_done.push_back(flushed(recv.wr_id, 0));
                }
                self.arrived(qp);
            }
            state::RTR if self.qps[qp].early => self.doubt_datagrams(qp),
            // Outstanding requests may complete, and their progress is unknown.
            state::SQD if !self.qps[qp].sends.is_empty() => self.loosen(qp),
            state::RTS if from == state::SQD => self.progress(qp),
            _ => {}
        }
    }

    /// The connection ends: the time of the other end's failure is not determined. Messages in flight through a shared
    /// queue, or as datagrams, may or may not have arrived.
    fn cut(&mut self, qp: usize) {
        let other = self.qps[qp].link.take().filter(|other| *other != qp);
        if let Some(other) = other {
            self.qps[other].link = None;
        }
        if self.qps[qp].qp_type == UD {
            // Datagrams that were not received may be lost with their sender, and leave their receive to another one.
            for other in self.live_qps().into_iter().filter(|other| *other != qp) {
                if self.qps[other].qp_type == UD && !self.qps[other].recv_done.is_empty() {
                    self.doubt_datagrams(other);
                }
            }
        }
        for end in [Some(qp), other].into_iter().flatten() {
            let is_late = self.qps[qp].srq.is_some()
                || other.is_some_and(|other| self.qps[other].srq.is_some())
                || self.qps[end].qp_type == UD;
            self.excuse_events(end);
            let pair = &mut self.qps[end];
            let dones = pair.send_done.iter_mut().chain(pair.recv_done.iter_mut());
            for done in dones.filter(|done| is_late || done.late) {
                (done.must, done.statuses) = (false, status::ANY);
            }
            if let Some(srq) = pair.srq {
                self.srqs[srq].loose = true;
            }
        }
        if let Some(other) = other {
            self.loosen(other);
        }
    }

    fn forget_posted(&mut self, qp: usize) {
        let of_shared: Vec<u64> = match self.qps[qp].srq {
            Some(srq) => self.srqs[srq].posted.iter().map(|recv| recv.wr_id).collect(),
            None => Vec::new(),
        };
        let pair = &mut self.qps[qp];
        pair.sends.clear();
        pair.recvs.clear();
        let ended = pair.send_done.drain(..).chain(pair.recv_done.clone());
        pair.stale.extend(ended.filter_map(|done| done.wr_id).chain(of_shared));
        let taken = std::mem::take(&mut pair.recv_done).len();
        (pair.posted_sends, pair.retired_sends) = (0, 0);
        if let Some(srq) = pair.srq {
            self.srqs[srq].claimed = self.srqs[srq].claimed.saturating_sub(taken);
        }
    }

    /// Any transition, with the required attributes, or with a missing, a superfluous or an invalid one.
    pub fn modify_qp(&mut self, rng: &mut Rng) {
        let Some(qp) = rng.pick(&self.live_qps()) else { return };
        let (from, qp_type) = (self.qps[qp].state, self.qps[qp].qp_type);
        if self.qps[qp].loose && from != state::ERR {
            // It may have failed in the meantime, so no result is certain.
            return self.query(qp);
        }
        // Usually a permitted transition.
        let ways: Vec<u32> = (0..7).filter(|to| table::row(qp_type, from, *to).is_some()).collect();
        let mut to = if rng.one_in(4) { rng.below(8) as u32 } else { rng.of(&ways) };
        if to == state::RESET && rng.one_in(2) {
            to = from;
        }
        let dest = rng.pick(&self.live_qps()).map_or(0, |other| self.qps[other].qp_num);
        let mut attr = self.good_attributes(qp, to, dest, rng);
        let row = table::row(qp_type, from, to);
        let (needed, optional) = row.unwrap_or((0, 0));
        let mut bits = mask::STATE | needed | (optional & rng.next() as c_int & !table::OTHER_PATH);
        let mut allowed = vec![if row.is_some() { 0 } else { EINVAL }];
        if row.is_some() {
            match rng.below(10) {
                0 => {
                    let missing = 1 << rng.below(21);
                    if needed & missing != 0 {
                        (bits, allowed) = (bits & !missing, vec![EINVAL]);
                    }
                }
                1 => {
                    let extra = 1 << rng.below(21);
                    if (mask::STATE | needed | optional) & extra == 0 {
                        (bits, allowed) = (bits | extra, vec![EINVAL]);
                    }
                }
                2 => (bits, allowed) = (bits | 1 << 22, vec![EOPNOTSUPP, EINVAL]),
                3 if table::spoil(rng, &mut attr, bits, MAX_RD_ATOMIC) => allowed = vec![EINVAL],
                4 if optional & table::OTHER_PATH != 0 => {
                    (bits, allowed) = (bits | (optional & table::OTHER_PATH), vec![EOPNOTSUPP, EINVAL]);
                }
                _ => {}
            }
        }
        if self.modify(qp, &mut attr, bits, &allowed) && to == state::RTR {
            self.qps[qp].dest = dest;
            // Its partner may be connected already, or never: a random peer causes failures at undetermined times.
            self.qps[qp].loose = qp_type != UD;
        }
    }

    /// Connects two new pairs of one transport, like programs do.
    pub fn connect(&mut self, rng: &mut Rng) {
        let fresh = |world: &Self, qp: &usize| world.qps[*qp].state == state::RESET;
        let free: Vec<usize> = self.live_qps().into_iter().filter(|qp| fresh(self, qp)).collect();
        let Some(one) = rng.pick(&free) else { return };
        let qp_type = self.qps[one].qp_type;
        let others: Vec<usize> = free
            .into_iter()
            .filter(|qp| self.qps[*qp].qp_type == qp_type && (*qp != one || qp_type == UD || rng.one_in(4)))
            .collect();
        let Some(other) = rng.pick(&others) else { return };
        for to in [state::INIT, state::RTR, state::RTS] {
            for (qp, peer) in [(one, other), (other, one)] {
                if self.qps[qp].state == to {
                    continue;
                }
                let from = self.qps[qp].state;
                let (needed, _) = table::row(qp_type, from, to).expect("the usual way");
                let mut attr = self.good_attributes(qp, to, self.qps[peer].qp_num, rng);
                self.modify(qp, &mut attr, mask::STATE | needed, &[0]);
            }
        }
        for (qp, peer) in [(one, other), (other, one)] {
            self.qps[qp].dest = self.qps[peer].qp_num;
            self.qps[qp].link = (qp_type != UD).then_some(peer);
        }
    }

    /// Moves to ERR or RESET: always permitted, except for a new pair.
    pub fn shut(&mut self, rng: &mut Rng) {
        let Some(qp) = rng.pick(&self.live_qps()) else { return };
        let to = rng.of(&[state::ERR, state::RESET]);
        let mut attr = self.good_attributes(qp, to, 0, rng);
        let is_fresh = self.qps[qp].state == state::RESET;
        let allowed = if is_fresh && to == state::ERR { EINVAL } else { 0 };
        self.modify(qp, &mut attr, mask::STATE, &[allowed]);
    }

    /// `ibv_query_qp` agrees with the model.
    pub fn query(&mut self, qp: usize) {
        // SAFETY: zero is valid for every field.
        let (mut attr, mut init): (QpAttr, QpInitAttr) = unsafe { (zeroed(), zeroed()) };
        // SAFETY: a live pair, complete structures.
        let got = unsafe { (self.library.query_qp)(self.qps[qp].ptr, &raw mut attr, -1, &raw mut init) };
        assert_eq!(got, 0, "ibv_query_qp(qp{qp})");
        let model = &mut self.qps[qp];
        // SAFETY: a live pair.
        let object: &Qp = unsafe { &*model.ptr };
        assert_eq!(attr.qp_state, attr.cur_qp_state);
        assert_eq!(object.state, attr.qp_state, "the structure tells the state that was asked for");
        let may_have_failed = model.loose && matches!(attr.qp_state, state::ERR | state::SQE);
        assert!(
            attr.qp_state == model.state || may_have_failed,
            "qp{qp} is in {}, not in {}",
            STATES[attr.qp_state.min(7) as usize],
            STATES[model.state as usize]
        );
        model.state = attr.qp_state;
        table::check_remembered(qp, &model.attr, &attr);
        assert!(init.send_cq == object.send_cq && init.recv_cq == object.recv_cq && init.srq == object.srq);
        assert_eq!((init.qp_type, init.sq_sig_all != 0), (model.qp_type, model.signal_all));
        assert_eq!(init.qp_context, object.qp_context);
        let caps = |cap: &QpCap| (cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_inline_data);
        assert_eq!(caps(&init.cap), caps(&model.cap));
        assert_eq!(caps(&attr.cap), caps(&model.cap));
    }

    pub fn query_qp(&mut self, rng: &mut Rng) {
        if let Some(qp) = rng.pick(&self.live_qps()) {
            self.query(qp);
        }
    }

    pub fn destroy_qp(&mut self, rng: &mut Rng) {
        let Some(qp) = rng.pick(&self.live_qps()) else { return };
        // SAFETY: a live pair, without events that wait for an acknowledgement.
        let got = unsafe { (self.library.destroy_qp)(self.qps[qp].ptr) };
        self.expect(format!("ibv_destroy_qp(qp{qp})"), got, &[0]);
        self.cut(qp);
        self.forget_posted(qp);
        self.qps[qp].live = false;
    }
}
