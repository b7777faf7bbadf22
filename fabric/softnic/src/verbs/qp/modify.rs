//! `modify_qp` of RC and UC.

use std::time::{Duration, Instant};

use farcall_shm::fence;
use farcall_stats::QpTransport;
use farcall_verbs::{Access, Error, QpAttr, QpState, Result};

use super::handle::{Qp, attach};
use crate::roce::{RoceQp, RoceQpResources};
use crate::shm_transport::qp::{Accept, HAZARD_WAIT};
use crate::shm_transport::srq::Receive;
use crate::shm_transport::state::StateEvent;
use crate::verbs::{PORT, require_port};

const OP: &str = "modify_qp";

impl Qp {
    pub(super) fn modify_to(&mut self, attr: &QpAttr) -> Result<()> {
        self.pair.shm.process.require_here(OP)?;
        if let Some(remote) = &self.remote {
            if attr.state != Some(QpState::Reset) {
                return remote.modify(attr);
            }
            self.return_to_shm();
        }
        self.pair.check_violation();
        let from = self.pair.state();
        match attr.check_transition(self.pair.transport.qp_type(), self.pair.qpn, from)? {
            QpState::Reset => self.enter_reset(),
            QpState::Init => self.enter_init(attr),
            QpState::Rtr => self.enter_rtr(attr),
            QpState::Rts => self.enter_rts(attr, from),
            QpState::Sqd => self.enter_sqd(attr, from),
            QpState::Sqe | QpState::Err => {
                self.pair.enter_error();
                Ok(())
            }
        }
    }

    fn apply_event(&self, to: QpState) -> Result<()> {
        if self.pair.apply_event(StateEvent::Modify(to)) {
            return Ok(());
        }
        Err(Error::InvalidState {
            operation: OP,
            object: format!("queue pair {:#x}", self.pair.qpn),
            state: self.pair.state().to_string(),
            remedy: "it failed in the meantime: reset it",
        })
    }

    fn enter_reset(&mut self) -> Result<()> {
        self.pair.apply_event(StateEvent::BeginReset);
        self.pair.close();
        self.pair.record_suspended_access();
        // The send side first, because a poll that continues requests may be establishing the connection.
        // SAFETY: `&mut self` makes this the only owner of the send side, and it holds no guard, as
        // `PendingLock::owner` requires.
        unsafe { self.pair.send.owner() }.renew(&self.pair);
        (self.recv_queue, self.inbound) = self.pair.renew()?;
        self.pair.apply_event(StateEvent::EndReset);
        self.go(QpTransport::None);
        Ok(())
    }

    /// Publishes the queue pair's transport in its counters.
    fn go(&self, way: QpTransport) {
        self.pair.stats.way.set(way as u64);
    }

    fn enter_init(&mut self, attr: &QpAttr) -> Result<()> {
        require_port(OP, attr.port_num.unwrap_or(PORT))?;
        self.access = attr.access.unwrap_or(self.access);
        self.apply_event(QpState::Init)
    }

    fn enter_rtr(&mut self, attr: &QpAttr) -> Result<()> {
        let (dest_qpn, path) = (attr.dest_qp_num.unwrap_or_default(), attr.ah.unwrap_or_default());
        if self.pair.shm.process.is_remote_path(OP, path.dgid, dest_qpn)? {
            return self.open_remote_transport(attr);
        }
        if let Some(timer) = attr.min_rnr_timer {
            self.pair.set_rnr_timer(timer);
        }
        self.access = attr.access.unwrap_or(self.access);
        self.pair.set_dest_qpn(dest_qpn);
        // SAFETY: `&mut self` makes this the only owner of the send side, and it holds no guard, as
        // `PendingLock::owner` requires.
        unsafe { self.pair.send.owner() }.connection.authorize_target(&self.pair)?;
        self.apply_event(QpState::Rtr)?;
        self.go(QpTransport::SharedMemory);
        self.pair.set_comm_est_wanted(true);
        self.pair.open(Accept::new(dest_qpn, self.access));
        self.pair.notify_ready();
        Ok(())
    }

    /// Connects to a peer on another host, and transfers the receives and completion queue bits to the RoCEv2 queue
    /// pair.
    fn open_remote_transport(&mut self, rtr: &QpAttr) -> Result<()> {
        let pair = &*self.pair;
        // SAFETY: in INIT no peer has access, so no poll consumes receives, and `&mut self` makes this the only
        // consumer.
        let next_receive = || unsafe { self.recv_queue.pop(Receive::of) };
        let take_receives = || std::iter::from_fn(next_receive).collect();
        let parts = RoceQpResources {
            shm: pair.registry.clone(),
            events: pair.events.clone(),
            qpn: pair.qpn,
            qp_type: pair.transport.qp_type(),
            pd: pair.pd,
            cap: pair.cap,
            signal_all: pair.signal_all,
            srq: pair.srq(),
            send_slot: pair.send_slot.clone(),
            recv_slot: pair.recv_slot.clone(),
        };
        self.remote = Some(RoceQp::connect(parts, take_receives, &QpAttr::init(self.access), rtr)?);
        self.go(QpTransport::RoceV2);
        Ok(())
    }

    /// Closes the RoCEv2 queue pair.
    fn return_to_shm(&mut self) {
        if let Some(remote) = self.remote.take() {
            remote.close();
            attach(&self.pair);
        }
    }

    /// Changes the peer's permissions. Waits for an access in progress that was admitted before, unless the peer is
    /// stopped inside it.
    fn change_access(&mut self, access: Access) {
        self.access = access;
        self.pair.open(Accept::new(self.pair.dest_qpn(), access));
        fence::heavy();
        self.pair.wait_until_no_access(Instant::now() + HAZARD_WAIT, |hazard| hazard != 0);
    }

    /// Enters RTS. From RTS it only changes attributes; from SQD it resumes sends.
    fn enter_rts(&mut self, attr: &QpAttr, from: QpState) -> Result<()> {
        self.change(attr);
        self.apply_event(QpState::Rts)?;
        if from == QpState::Rtr {
            self.pair.set_comm_est_wanted(false);
        }
        if from == QpState::Sqd {
            // SAFETY: `&mut self` makes this the only owner of the send side, and it holds no guard, as
            // `PendingLock::owner` requires.
            unsafe { self.pair.send.owner() }.end_drain(&self.pair);
            self.pair.after_leaving_sends();
        }
        Ok(())
    }

    /// Changes the attributes that may change while the queue pair is connected.
    fn change(&mut self, attr: &QpAttr) {
        if let Some(access) = attr.access {
            self.change_access(access);
        }
        if let Some(timer) = attr.min_rnr_timer {
            self.pair.set_rnr_timer(timer);
        }
        (self.timeout, self.retry_cnt) =
            (attr.timeout.unwrap_or(self.timeout), attr.retry_cnt.unwrap_or(self.retry_cnt));
        // SAFETY: `&mut self` makes this the only owner of the send side, and it holds no guard, as
        // `PendingLock::owner` requires.
        let mut send = unsafe { self.pair.send.owner() };
        if attr.timeout.is_some() || attr.retry_cnt.is_some() {
            let one = Duration::from_nanos(4_096 << u32::from(self.timeout & 31));
            send.timers.transport = (self.timeout != 0).then(|| one * (u32::from(self.retry_cnt & 7) + 1));
        }
        if let Some(retries) = attr.rnr_retry {
            send.timers.rnr_retries = (retries & 7 != 7).then_some(retries & 7);
        }
    }

    /// Enters SQD: outstanding requests complete, and requests posted from now on wait.
    fn enter_sqd(&mut self, attr: &QpAttr, from: QpState) -> Result<()> {
        if from == QpState::Rts {
            // SAFETY: `&mut self` makes this the only owner of the send side, and it holds no guard, as
            // `PendingLock::owner` requires.
            let mut send = unsafe { self.pair.send.owner() };
            self.apply_event(QpState::Sqd)?;
            send.begin_drain(&self.pair, attr.en_sqd_async_notify == Some(true));
            return Ok(());
        }
        if let Some(path) = attr.ah {
            self.pair.shm.process.require_reachable(OP, path.dgid)?;
        }
        self.change(attr);
        Ok(())
    }
}
