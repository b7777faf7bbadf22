//! Creating, modifying and destroying all objects except queue pairs, and querying the device.

use std::ffi::c_int;
use std::ptr;

use farcall_layout::{AhAttr, CqInitAttrEx, DeviceAttr, GidEntry, PortAttr, SrqAttr, SrqInitAttr, srq_mask};
use farcall_verbs::Wc;
use libc::{EBUSY, EFAULT, EINVAL, EOPNOTSUPP};

use crate::library::{clear_errno, errno, inline, zeroed};
use crate::world::{AhModel, ChannelModel, ContextModel, CqModel, MrModel, PdModel, Rng, SrqModel, World};

/// Upper limit of the entries of a port's GID table.
const GIDS_MAX: usize = 16;

/// Length of each region's buffer in bytes.
pub const BUFFER: usize = 32 << 10;
/// `IBV_ACCESS_*`.
const LOCAL_WRITE: u32 = 1;
const REMOTE_WRITE: u32 = 2;
const REMOTE_ATOMIC: u32 = 8;
const MW_BIND: u32 = 1 << 4;
const ZERO_BASED: u32 = 1 << 5;
const HUGETLB: u32 = 1 << 7;
const RELAXED_ORDERING: u32 = 1 << 20;

impl World {
    /// Checks a call that creates an object: the pointer or `errno` against the allowed errors (0: an object).
    #[track_caller]
    pub fn expect_made<T>(&mut self, call: String, made: *mut T, allowed: &[c_int]) -> bool {
        let got = if made.is_null() { errno() } else { 0 };
        self.expect(call, got, allowed);
        !made.is_null()
    }

    pub fn open(&mut self) {
        if self.open_ctxs().len() >= 2 {
            return;
        }
        clear_errno();
        // SAFETY: the device of the list.
        let ptr = unsafe { (self.library.open_device)(self.device) };
        if self.expect_made(format!("ctx{} = ibv_open_device()", self.ctxs.len()), ptr, &[0]) {
            // SAFETY: just opened; nothing blocks in a test.
            unsafe { libc::fcntl((*ptr).async_fd, libc::F_SETFL, libc::O_NONBLOCK) };
            self.ctxs.push(ContextModel { ptr, open: true });
        }
    }

    /// Closes only contexts without objects: closing others is defined (their objects are destroyed as well), but
    /// using these objects afterwards is not.
    pub fn close(&mut self, rng: &mut Rng) {
        let free: Vec<usize> = self.open_ctxs().into_iter().filter(|ctx| !self.has_objects(*ctx)).collect();
        let Some(ctx) = rng.pick(&free) else { return };
        // SAFETY: an open context that is not used again.
        let got = unsafe { (self.library.close_device)(self.ctxs[ctx].ptr) };
        self.ctxs[ctx].open = false;
        self.expect(format!("ibv_close_device(ctx{ctx})"), got, &[0]);
    }

    fn has_objects(&self, ctx: usize) -> bool {
        self.pds.iter().any(|pd| pd.live && pd.ctx == ctx)
            || self.cqs.iter().any(|cq| cq.live && cq.ctx == ctx)
            || self.channels.iter().any(|channel| channel.live && channel.ctx == ctx)
    }

    pub fn alloc_pd(&mut self, rng: &mut Rng) {
        let Some(ctx) = rng.pick(&self.open_ctxs()) else { return };
        clear_errno();
        // SAFETY: an open context.
        let ptr = unsafe { (self.library.alloc_pd)(self.ctxs[ctx].ptr) };
        if self.expect_made(format!("pd{} = ibv_alloc_pd(ctx{ctx})", self.pds.len()), ptr, &[0]) {
            self.pds.push(PdModel { ptr, ctx, live: true });
        }
    }

    pub fn dealloc_pd(&mut self, rng: &mut Rng) {
        let Some(pd) = rng.pick(&self.live_pds()) else { return };
        let is_used = self.mrs.iter().any(|mr| mr.live && mr.pd == pd)
            || self.qps.iter().any(|qp| qp.live && qp.pd == pd)
            || self.srqs.iter().any(|srq| srq.live && srq.pd == pd)
            || self.ahs.iter().any(|ah| ah.live && ah.pd == pd);
        // SAFETY: a live domain.
        let got = unsafe { (self.library.dealloc_pd)(self.pds[pd].ptr) };
        self.pds[pd].live = is_used;
        self.expect(format!("ibv_dealloc_pd(pd{pd})"), got, &[if is_used { EBUSY } else { 0 }]);
    }

    // --- Memory regions ----------------------------------------------------------------------------------------------

    /// Returns the result of registering with an access mask: IBA 10.6.3.1, and the kernel's check of unknown bits.
    fn access_verdict(access: u32) -> c_int {
        const KNOWN: u32 = 0xf | MW_BIND | ZERO_BASED | HUGETLB | 0x3ff0_0000;
        const NOT_OFFERED: u32 = 1 << 6 | 1 << 8 | 1 << 9;
        if access & !(KNOWN | NOT_OFFERED) != 0 {
            return EINVAL;
        }
        if access & NOT_OFFERED != 0 {
            return EOPNOTSUPP;
        }
        if access & (REMOTE_WRITE | REMOTE_ATOMIC) != 0 && access & LOCAL_WRITE == 0 {
            return EINVAL;
        }
        0
    }

    fn random_access(rng: &mut Rng) -> u32 {
        match rng.below(12) {
            0 => rng.below(16) as u32,
            1 => 1 << rng.below(31),
            2 => LOCAL_WRITE | HUGETLB | RELAXED_ORDERING,
            3 => LOCAL_WRITE | 4,
            _ => 0xf,
        }
    }

    pub fn reg_mr(&mut self, rng: &mut Rng) {
        let Some(pd) = rng.pick(&self.live_pds()) else { return };
        let access = Self::random_access(rng);
        let mut verdict = Self::access_verdict(access);
        let mut buffer = vec![0_u8; BUFFER].into_boxed_slice();
        let (mut addr, mut len) = (buffer.as_mut_ptr() as u64, BUFFER as u64);
        self.memory.push(buffer);
        match rng.below(16) {
            // A length of 0, which addresses no byte; an address that is not mapped; one that wraps around.
            0 => len = 0,
            1 => (addr, verdict) = (4096, if verdict == 0 { EFAULT } else { verdict }),
            2 => (addr, verdict) = (u64::MAX - 100, if verdict == 0 { EINVAL } else { verdict }),
            _ => {}
        }
        let how = rng.below(4);
        let iova = if how == 3 && rng.one_in(2) { addr ^ 0x10000 } else { addr };
        let (at, pd_ptr, library) = (addr as *mut _, self.pds[pd].ptr, self.library);
        clear_errno();
        // SAFETY: a live domain; where registering succeeds, memory of the world, which outlives the region.
        let ptr = unsafe {
            match how {
                // Like the header's macro: optional flags require the second function.
                0 | 1 if access & 0x3ff0_0000 == 0 => {
                    (library.reg_mr)(pd_ptr, at, len as usize, access as c_int)
                }
                3 => (library.ibv_reg_mr_iova)(pd_ptr, at, len as usize, iova, access as c_int),
                _ => (library.ibv_reg_mr_iova2)(pd_ptr, at, len as usize, iova, access),
            }
        };
        // No messages use regions with other addresses than those of their memory.
        let is_renamed = iova != addr || access & ZERO_BASED != 0;
        let allowed = [verdict];
        let call = format!("mr{} = ibv_reg_mr(pd{pd}, {addr:#x}, {len}, {access:#x})", self.mrs.len());
        if self.expect_made(call, ptr, &allowed) {
            // SAFETY: a region that was just made.
            let (lkey, rkey) = unsafe {
                assert!((*ptr).pd == pd_ptr && (*ptr).addr as u64 == addr && (*ptr).length as u64 == len);
                ((*ptr).lkey, (*ptr).rkey)
            };
            if is_renamed {
                // SAFETY: a region that nothing uses.
                assert_eq!(unsafe { (library.dereg_mr)(ptr) }, 0);
                return;
            }
            self.mrs.push(MrModel { ptr, pd, live: true, access, addr, len, lkey, rkey, cursor: 0 });
        }
    }

    /// `man ibv_rereg_mr`: with invalid input the region is unchanged; if the device refuses, it can only be
    /// deregistered.
    pub fn rereg_mr(&mut self, rng: &mut Rng) {
        const TRANSLATION: c_int = 1;
        const PD: c_int = 2;
        const ACCESS: c_int = 4;
        const ERR_INPUT: c_int = -1;
        const ERR_CMD: c_int = -4;
        if !self.is_idle() {
            return;
        }
        let (Some(mr), Some(pd)) = (rng.pick(&self.live_mrs()), rng.pick(&self.live_pds())) else { return };
        let flags = if rng.one_in(8) { 1 << 3 } else { rng.below(8) as c_int };
        let access = if flags & ACCESS != 0 { Self::random_access(rng) } else { 0 };
        let buffer = vec![0_u8; BUFFER].into_boxed_slice();
        let (addr, len) = match rng.below(8) {
            0 | 1 if flags & TRANSLATION != 0 => (0, BUFFER as u64),
            2 if flags & TRANSLATION != 0 => (4096, BUFFER as u64),
            _ => (buffer.as_ptr() as u64, BUFFER as u64),
        };
        self.memory.push(buffer);
        let refused = match Self::access_verdict(access) {
            _ if flags == 0 => EINVAL,
            verdict if flags & ACCESS != 0 && verdict != 0 => verdict,
            _ if flags & PD != 0 && self.pds[pd].ctx != self.pds[self.mrs[mr].pd].ctx => EINVAL,
            _ if addr == 4096 => EFAULT,
            _ => 0,
        };
        let is_bad = flags & !7 != 0 || (flags & TRANSLATION != 0 && addr == 0);
        let expected = match refused {
            _ if is_bad => (ERR_INPUT, EINVAL),
            0 => (0, 0),
            number => (ERR_CMD, number),
        };
        clear_errno();
        // SAFETY: a live region that nothing uses; memory of the world.
        let got = unsafe {
            (self.library.ibv_rereg_mr)(
                self.mrs[mr].ptr,
                flags,
                self.pds[pd].ptr,
                addr as *mut _,
                len as usize,
                access as c_int,
            )
        };
        let number = if got == 0 { 0 } else { errno() };
        self.say(format!("ibv_rereg_mr(mr{mr}, {flags:#x}, pd{pd}, {access:#x}) = {got}, errno {number}"));
        assert_eq!((got, number), expected, "ibv_rereg_mr");
        if got == ERR_CMD {
            // SAFETY: a region that nothing uses.
            assert_eq!(unsafe { (self.library.dereg_mr)(self.mrs[mr].ptr) }, 0);
            self.mrs[mr].live = false;
            return;
        }
        let region = &mut self.mrs[mr];
        // SAFETY: a live region.
        let now = unsafe { &*region.ptr };
        if got == 0 {
            if flags & TRANSLATION != 0 {
                (region.addr, region.len, region.cursor) = (addr, len, 0);
            }
            if flags & PD != 0 {
                region.pd = pd;
            }
            if flags & ACCESS != 0 {
                region.access = access;
            }
        }
        assert!((now.lkey, now.rkey, now.addr as u64) == (region.lkey, region.rkey, region.addr));
        assert!((now.length as u64, now.pd) == (region.len, self.pds[region.pd].ptr));
        if got == 0 && access & ZERO_BASED != 0 {
            // SAFETY: a region that nothing uses.
            assert_eq!(unsafe { (self.library.dereg_mr)(region.ptr) }, 0);
            region.live = false;
        }
    }

    pub fn dereg_mr(&mut self, rng: &mut Rng) {
        if !self.is_idle() {
            return;
        }
        let Some(mr) = rng.pick(&self.live_mrs()) else { return };
        // SAFETY: a live region that nothing uses.
        let got = unsafe { (self.library.dereg_mr)(self.mrs[mr].ptr) };
        self.mrs[mr].live = false;
        self.expect(format!("ibv_dereg_mr(mr{mr})"), got, &[0]);
    }

    /// Returns a range of a region that was not returned before.
    pub fn slot(&mut self, mr: usize, len: u64) -> Option<u64> {
        let region = &mut self.mrs[mr];
        let at = region.cursor;
        region.cursor += len.max(1).next_multiple_of(64);
        (at + len <= region.len).then_some(region.addr + at)
    }

    // --- Completion channels and queues ------------------------------------------------------------------------------

    pub fn create_channel(&mut self, rng: &mut Rng) {
        let Some(ctx) = rng.pick(&self.open_ctxs()) else { return };
        clear_errno();
        // SAFETY: an open context.
        let ptr = unsafe { (self.library.create_comp_channel)(self.ctxs[ctx].ptr) };
        let call = format!("ch{} = ibv_create_comp_channel(ctx{ctx})", self.channels.len());
        if self.expect_made(call, ptr, &[0]) {
            // SAFETY: just made; nothing blocks in a test.
            unsafe { libc::fcntl((*ptr).fd, libc::F_SETFL, libc::O_NONBLOCK) };
            self.channels.push(ChannelModel { ptr, ctx, live: true });
        }
    }

    pub fn destroy_channel(&mut self, rng: &mut Rng) {
        let Some(channel) = rng.pick(&self.live_channels()) else { return };
        let is_used = self.cqs.iter().any(|cq| cq.live && cq.channel == Some(channel));
        // SAFETY: a live channel.
        let got = unsafe { (self.library.destroy_comp_channel)(self.channels[channel].ptr) };
        self.channels[channel].live = is_used;
        self.expect(
            format!("ibv_destroy_comp_channel(ch{channel})"),
            got,
            &[if is_used { EBUSY } else { 0 }],
        );
    }

    pub fn create_cq(&mut self, rng: &mut Rng) {
        let Some(ctx) = rng.pick(&self.open_ctxs()) else { return };
        let of_context: Vec<usize> =
            self.live_channels().into_iter().filter(|channel| self.channels[*channel].ctx == ctx).collect();
        let channel = if rng.one_in(2) { rng.pick(&of_context) } else { None };
        let (mut cqe, mut vector, mut verdict) = (1 + rng.below(64) as c_int, 0, 0);
        match rng.below(16) {
            0 => (cqe, verdict) = (0, EINVAL),
            1 => (cqe, verdict) = (-1, EINVAL),
            2 => (vector, verdict) = (1, EINVAL),
            3 => (vector, verdict) = (-1, EINVAL),
            _ => {}
        }
        let channel_ptr = channel.map_or(ptr::null_mut(), |channel| self.channels[channel].ptr);
        let (ctx_ptr, extended) = (self.ctxs[ctx].ptr, rng.one_in(3));
        let tag = ptr::without_provenance_mut(0x1000 + self.cqs.len());
        clear_errno();
        let ptr = if extended {
            // SAFETY: zero is valid for every field.
            let mut attr: CqInitAttrEx = unsafe { zeroed() };
            (attr.cqe, attr.cq_context, attr.channel) = (cqe as u32, tag, channel_ptr);
            attr.comp_vector = vector as u32;
            attr.wc_flags = 0x7f;
            match rng.below(12) {
                // VLANs, flow tags; unknown flags and masks.
                0 => (attr.wc_flags, verdict) = (1 << 8, EOPNOTSUPP),
                1 => (attr.wc_flags, verdict) = (1 << 40, EOPNOTSUPP),
                2 => (attr.comp_mask, verdict) = (1 << 5, EINVAL),
                3 => (attr.comp_mask, attr.flags, verdict) = (1, 1 << 7, EOPNOTSUPP),
                4 => (attr.comp_mask, attr.flags) = (1, 1),
                _ => {}
            }
            // SAFETY: an open context, a complete structure.
            unsafe { inline::create_cq_ex(ctx_ptr, &raw mut attr).cast() }
        } else {
            // SAFETY: an open context; a live channel or null.
            unsafe { (self.library.create_cq)(ctx_ptr, cqe, tag, channel_ptr, vector) }
        };
        let function = if extended { "ibv_create_cq_ex" } else { "ibv_create_cq" };
        let call =
            format!("cq{} = {function}(ctx{ctx}, {cqe}, channel {channel:?}, {vector})", self.cqs.len());
        let allowed: &[c_int] = if extended && verdict != 0 { &[EINVAL, EOPNOTSUPP] } else { &[verdict] };
        if self.expect_made(call, ptr, allowed) {
            // SAFETY: just made.
            unsafe {
                assert!((*ptr).cqe >= cqe && (*ptr).channel == channel_ptr && (*ptr).context == ctx_ptr);
                assert_eq!((*ptr).cq_context, tag);
            }
            let (armed, must_event) = (false, false);
            self.cqs.push(CqModel { ptr, ctx, channel, extended, live: true, armed, must_event });
        }
    }

    pub fn resize_cq(&mut self, rng: &mut Rng) {
        let Some(cq) = rng.pick(&self.live_cqs()) else { return };
        let wanted = rng.of(&[-1, 0, 1, 100, 5000]);
        // SAFETY: a live queue.
        let got = unsafe { (self.library.ibv_resize_cq)(self.cqs[cq].ptr, wanted) };
        self.expect(format!("ibv_resize_cq(cq{cq}, {wanted})"), got, &[if wanted < 1 { EINVAL } else { 0 }]);
        // SAFETY: a live queue.
        assert!(got != 0 || unsafe { (*self.cqs[cq].ptr).cqe } >= wanted);
    }

    pub fn destroy_cq(&mut self, rng: &mut Rng) {
        let Some(cq) = rng.pick(&self.live_cqs()) else { return };
        let is_used = self.qps.iter().any(|qp| qp.live && (qp.send_cq == cq || qp.recv_cq == cq));
        // SAFETY: a live queue, without events that wait for an acknowledgement.
        let got = unsafe { (self.library.destroy_cq)(self.cqs[cq].ptr) };
        self.cqs[cq].live = is_used;
        self.expect(format!("ibv_destroy_cq(cq{cq})"), got, &[if is_used { EBUSY } else { 0 }]);
    }

    // --- Shared receive queues ---------------------------------------------------------------------------------------

    pub fn create_srq(&mut self, rng: &mut Rng) {
        let Some(pd) = rng.pick(&self.live_pds()) else { return };
        let limits = self.limits(self.pds[pd].ctx);
        let mut verdict = 0;
        let (mut max_wr, mut max_sge) = (1 + rng.below(16) as u32, 1 + rng.below(3) as u32);
        match rng.below(12) {
            0 => (max_wr, verdict) = (limits.max_srq_wr as u32 + 1, EINVAL),
            1 => (max_sge, verdict) = (limits.max_srq_sge as u32 + 1, EINVAL),
            _ => {}
        }
        let mut attr =
            SrqInitAttr { srq_context: ptr::null_mut(), attr: SrqAttr { max_wr, max_sge, srq_limit: 0 } };
        clear_errno();
        // SAFETY: a live domain, a complete structure.
        let ptr = unsafe { (self.library.create_srq)(self.pds[pd].ptr, &raw mut attr) };
        let call = format!("srq{} = ibv_create_srq(pd{pd}, {max_wr}, {max_sge})", self.srqs.len());
        if self.expect_made(call, ptr, &[verdict]) {
            assert!(attr.attr.max_wr >= max_wr && attr.attr.max_sge >= max_sge, "never less than asked for");
            let (max_wr, max_sge) = (attr.attr.max_wr, attr.attr.max_sge);
            let (posted, claimed, limit, loose) = (Vec::new(), 0, 0, false);
            self.srqs.push(SrqModel { ptr, pd, live: true, max_wr, max_sge, limit, posted, claimed, loose });
        }
    }

    pub fn modify_srq(&mut self, rng: &mut Rng) {
        let Some(srq) = rng.pick(&self.live_srqs()) else { return };
        let model = &self.srqs[srq];
        let (held, max_wr) = (model.posted.len() - model.claimed, model.max_wr);
        let mask = rng.of(&[srq_mask::LIMIT, srq_mask::LIMIT, srq_mask::MAX_WR, 0, 1 << 4]);
        let (mut attr, mut verdict) = (SrqAttr { max_wr, max_sge: 1, srq_limit: 0 }, 0);
        match mask {
            srq_mask::LIMIT => {
                attr.srq_limit = rng.below(max_wr as usize + 2) as u32;
                if attr.srq_limit > max_wr {
                    verdict = EINVAL;
                }
            }
            srq_mask::MAX_WR => {
                attr.max_wr = rng.of(&[max_wr, max_wr + 3, 1, u32::MAX]);
                if attr.max_wr == u32::MAX || u64::from(attr.max_wr) < u64::from(model.limit) {
                    verdict = EINVAL;
                }
                if attr.max_wr == 1 && model.posted.len() > 1 {
                    if held <= 1 || model.loose {
                        // It is not determined whether messages in flight have already consumed their receives.
                        return;
                    }
                    verdict = EINVAL;
                }
            }
            0 => {}
            _ => verdict = EINVAL,
        }
        // SAFETY: a live queue, a complete structure.
        let got = unsafe { (self.library.modify_srq)(self.srqs[srq].ptr, &raw mut attr, mask) };
        let (wr, limit) = (attr.max_wr, attr.srq_limit);
        self.expect(format!("ibv_modify_srq(srq{srq}, wr {wr}, limit {limit}, {mask:#x})"), got, &[verdict]);
        if got != 0 {
            return;
        }
        if mask == srq_mask::MAX_WR {
            self.srqs[srq].max_wr = attr.max_wr;
        }
        if mask == srq_mask::LIMIT {
            self.srqs[srq].limit = attr.srq_limit;
        }
        self.check_limit(srq);
    }

    /// The limit event occurs when fewer receives than the limit are left (IBA 10.2.9.3).
    pub fn check_limit(&mut self, srq: usize) {
        let model = &mut self.srqs[srq];
        if model.limit > 0 && model.posted.len() < model.limit as usize {
            model.limit = 0;
            if !model.loose {
                self.limits_due.push(srq);
            }
        }
    }

    pub fn query_srq(&mut self, rng: &mut Rng) {
        let Some(srq) = rng.pick(&self.live_srqs()) else { return };
        let mut attr = SrqAttr { max_wr: 0, max_sge: 0, srq_limit: 0 };
        // SAFETY: a live queue, a complete structure.
        let got = unsafe { (self.library.query_srq)(self.srqs[srq].ptr, &raw mut attr) };
        self.expect(format!("ibv_query_srq(srq{srq})"), got, &[0]);
        let model = &self.srqs[srq];
        assert_eq!((attr.max_wr, attr.max_sge), (model.max_wr, model.max_sge));
        if !model.loose && model.claimed == 0 {
            assert_eq!(attr.srq_limit, model.limit, "the limit");
        }
    }

    pub fn destroy_srq(&mut self, rng: &mut Rng) {
        let Some(srq) = rng.pick(&self.live_srqs()) else { return };
        let is_used = self.qps.iter().any(|qp| qp.live && qp.srq == Some(srq));
        // SAFETY: a live queue, without events that wait for an acknowledgement.
        let got = unsafe { (self.library.destroy_srq)(self.srqs[srq].ptr) };
        self.srqs[srq].live = is_used;
        if !is_used {
            self.srqs[srq].posted.clear();
            self.limits_due.retain(|due| *due != srq);
        }
        self.expect(format!("ibv_destroy_srq(srq{srq})"), got, &[if is_used { EBUSY } else { 0 }]);
    }

    // --- Address handles ---------------------------------------------------------------------------------------------

    /// Returns a path to this host.
    pub fn own_path(&self, ctx: usize) -> AhAttr {
        let mut attr = AhAttr::default();
        let mut gid = [0_u8; 16];
        // SAFETY: an open context.
        let got = unsafe { (self.library.query_gid)(self.ctxs[ctx].ptr, 1, 0, &raw mut gid) };
        assert_eq!(got, 0);
        (attr.is_global, attr.port_num, attr.grh.dgid, attr.grh.hop_limit) = (1, 1, gid, 64);
        attr
    }

    pub fn create_ah(&mut self, rng: &mut Rng) {
        let Some(pd) = rng.pick(&self.live_pds()) else { return };
        let mut attr = self.own_path(self.pds[pd].ctx);
        let mut verdict = 0;
        match rng.below(10) {
            // No route on Ethernet, no such port, no such entry.
            0 => (attr.is_global, verdict) = (0, EINVAL),
            1 => (attr.port_num, verdict) = (rng.of(&[0, 2]), EINVAL),
            2 => (attr.grh.sgid_index, verdict) = (15, EINVAL),
            3 => attr.grh.sgid_index = 1,
            _ => {}
        }
        clear_errno();
        // SAFETY: a live domain, a complete structure.
        let ptr = unsafe { (self.library.create_ah)(self.pds[pd].ptr, &raw mut attr) };
        if self.expect_made(format!("ah{} = ibv_create_ah(pd{pd})", self.ahs.len()), ptr, &[verdict]) {
            self.ahs.push(AhModel { ptr, pd, live: true });
        }
    }

    /// The path to the sender of a completion without a GRH, which does not exist on Ethernet.
    fn paths_back(&mut self, ctx: usize, pd: Option<usize>) {
        let mut wc = Wc::default();
        let mut attr = AhAttr::default();
        // SAFETY: an open context, complete structures; without a GRH nothing is read of it.
        let got = unsafe {
            let context = self.ctxs[ctx].ptr;
            (self.library.ibv_init_ah_from_wc)(context, 1, &raw mut wc, ptr::null_mut(), &raw mut attr)
        };
        self.expect("ibv_init_ah_from_wc(no GRH)".into(), got, &[0]);
        assert_eq!((attr.is_global, attr.port_num), (0, 1));
        let Some(pd) = pd else { return };
        clear_errno();
        // SAFETY: a live domain, a complete structure.
        let made = unsafe {
            (self.library.ibv_create_ah_from_wc)(self.pds[pd].ptr, &raw mut wc, ptr::null_mut(), 1)
        };
        self.expect_made("ibv_create_ah_from_wc(no GRH)".into(), made, &[EINVAL]);
    }

    pub fn destroy_ah(&mut self, rng: &mut Rng) {
        if !self.is_idle() {
            return;
        }
        let Some(ah) = rng.pick(&self.live_ahs()) else { return };
        // SAFETY: a live handle that no request names.
        let got = unsafe { (self.library.destroy_ah)(self.ahs[ah].ptr) };
        self.ahs[ah].live = false;
        self.expect(format!("ibv_destroy_ah(ah{ah})"), got, &[0]);
    }

    // --- The device --------------------------------------------------------------------------------------------------

    pub fn limits(&self, ctx: usize) -> DeviceAttr {
        // SAFETY: zero is valid for every field.
        let mut attr: DeviceAttr = unsafe { zeroed() };
        // SAFETY: an open context, a complete structure.
        assert_eq!(unsafe { (self.library.query_device)(self.ctxs[ctx].ptr, &raw mut attr) }, 0);
        attr
    }

    /// Returns the number of entries of the port's table.
    fn gids_of(ctx: &ContextModel) -> usize {
        let mut attr = PortAttr::default();
        // SAFETY: an open context, a complete structure.
        assert_eq!(unsafe { inline::query_port(ctx.ptr, 1, &raw mut attr) }, 0);
        attr.gid_tbl_len as usize
    }

    pub fn queries(&mut self, rng: &mut Rng) {
        let Some(ctx) = rng.pick(&self.open_ctxs()) else { return };
        let (context, library) = (self.ctxs[ctx].ptr, self.library);
        let pd = rng.pick(&self.live_pds());
        self.paths_back(ctx, pd);
        let port = rng.of(&[0_u8, 1, 1, 1, 2, 255]);
        let index = rng.of(&[0, 0, 1, 2, 15, 1000, -1]);
        let is_port = port == 1;
        let mut attr = PortAttr::default();
        // SAFETY: an open context, complete structures.
        let got = unsafe { inline::query_port(context, port, &raw mut attr) };
        self.expect(format!("ibv_query_port({port})"), got, &[if is_port { 0 } else { EINVAL }]);
        let gids = Self::gids_of(&self.ctxs[ctx]);
        let mut gid = [0_u8; 16];
        // SAFETY: an open context, a valid variable.
        let got = unsafe { (library.query_gid)(context, port, index, &raw mut gid) };
        let is_there = is_port && (index as u32) < gids as u32;
        self.expect(format!("ibv_query_gid({port}, {index})"), got, &[if is_there { 0 } else { -1 }]);
        let mut pkey = 0_u16;
        // SAFETY: an open context, a valid variable.
        let got = unsafe { (library.ibv_query_pkey)(context, port, index, &raw mut pkey) };
        let is_partition = is_port && index == 0;
        self.expect(format!("ibv_query_pkey({port}, {index})"), got, &[if is_partition { 0 } else { -1 }]);
        let wanted = rng.of(&[0xffff_u16, 0x1234]);
        // SAFETY: an open context.
        let got = unsafe { (library.ibv_get_pkey_index)(context, port, wanted) };
        let found = is_port && wanted == 0xffff;
        self.expect(format!("ibv_get_pkey_index({port})"), got, &[if found { 0 } else { -1 }]);
        // SAFETY: zero is valid for every field.
        let mut entries: [GidEntry; GIDS_MAX] = unsafe { zeroed() };
        let flags = rng.of(&[0, 0, 1]);
        // SAFETY: an open context, a complete structure.
        let got = unsafe {
            let size = size_of::<GidEntry>();
            (library._ibv_query_gid_ex)(context, port.into(), index as u32, entries.as_mut_ptr(), flags, size)
        };
        let verdict = if is_there && flags == 0 { 0 } else { EINVAL };
        self.expect(format!("ibv_query_gid_ex({port}, {index}, {flags})"), got, &[verdict]);
        let room = rng.below(gids + 1);
        // SAFETY: `entries` has at least `room` elements.
        let got = unsafe {
            (library._ibv_query_gid_table)(context, entries.as_mut_ptr(), room, flags, size_of::<GidEntry>())
        };
        let verdict = if flags != 0 || room < gids { -EINVAL } else { gids as c_int };
        self.expect(format!("ibv_query_gid_table({room}, {flags})"), got as c_int, &[verdict]);
    }
}
