//! `modify_qp`: the state machine with its required attributes (IBA table 91, rows of RC and UC).

use std::time::{Duration, Instant};

use farcall_verbs::{Access, Error, QpAttr, QpState, Result};

use super::handle::Qp;
use super::remote::{Remote, refused};
use super::send::SendSide;
use super::wait_queue::Wait;
use super::{Accept, Connected, HAZARD_WAIT, QpCore};
use crate::fence;
use crate::flight::Event;
use crate::peer::Asked;
use crate::rendezvous::refusal;

const OP: &str = "modify_qp";

fn required<T>(value: Option<T>, name: &'static str, to: QpState) -> Result<T> {
    value.ok_or_else(|| Error::invalid(OP, format!("the transition to {to} needs {name}")))
}

impl QpCore {
    /// Reaches the peer; what must be waited for if that is not possible yet.
    pub(super) fn connect(&self, send: &mut SendSide) -> Result<Option<Wait>> {
        match Remote::connect(&self.process, self, send)? {
            Asked::Granted(remote) => {
                self.connected(&remote.peer);
                self.stats.record(Event::Connected as u64, send.dest_qpn.into());
                send.remote = Some(remote);
                Ok(None)
            }
            Asked::NotYet => Ok(Some(Wait::Answer)),
            Asked::Refused(refusal::NOT_READY) => Ok(Some(Wait::Peer)),
            Asked::Refused(reason) => Err(refused(send.dest_qpn, reason)),
        }
    }
}

impl Qp {
    pub(super) fn modify_to(&mut self, attr: &QpAttr) -> Result<()> {
        self.core.process.require_here(OP)?;
        let (from, to) = (self.core.state(), attr.state.unwrap_or_else(|| self.core.state()));
        if !from.may_become(to) {
            return Err(Error::InvalidState {
                operation: OP,
                object: format!("queue pair {:#x}", self.core.qpn()),
                state: from.to_string(),
                remedy: "follow RESET → INIT → RTR → RTS; RESET and ERR are always allowed",
            });
        }
        match to {
            QpState::Reset => self.enter_reset()?,
            QpState::Init => self.enter_init(attr, from)?,
            QpState::Rtr => self.enter_rtr(attr)?,
            QpState::Rts => {
                self.enter_rts(attr, from)?;
                return self.go_on_sending(from);
            }
            QpState::Err => self.core.enter_error(),
            QpState::Sqd => return self.enter_sqd(attr, from),
            QpState::Sqe => {
                let what = "SQE is entered by errors of sends only".into();
                return Err(Error::InvalidArgument { operation: OP, what });
            }
        }
        // Within a state there is nothing to set, and a failure meanwhile must not be forgotten.
        if to != QpState::Err && to != from {
            self.core.set_state(to);
        }
        if to == QpState::Rtr {
            self.core.want_greeting(true);
            self.core.open(Accept::new(self.core.dest_qpn(), self.access));
        }
        Ok(())
    }

    fn enter_reset(&mut self) -> Result<()> {
        self.core.set_state(QpState::Reset);
        self.core.close();
        self.core.leave_behind();
        // First the send side: a poll that continues requests there may be connecting us.
        // SAFETY: we are the owner of the queue pair.
        unsafe { self.core.send.owner() }.renew(&self.core);
        (self.recv_queue, self.inbound) = self.core.renew()?;
        self.core.begin_life();
        Ok(())
    }

    /// From RESET all of it; within INIT what is to be changed.
    fn enter_init(&mut self, attr: &QpAttr, from: QpState) -> Result<()> {
        if from == QpState::Reset {
            required(attr.port_num, "port_num", QpState::Init)?;
            required(attr.pkey_index, "pkey_index", QpState::Init)?;
            required(attr.access, "access", QpState::Init)?;
        }
        if let Some(port) = attr.port_num.filter(|port| *port != 1) {
            return Err(Error::invalid(OP, format!("port {port}: this device has port 1 only")));
        }
        self.access = attr.access.unwrap_or(self.access);
        Ok(())
    }

    fn enter_rtr(&mut self, attr: &QpAttr) -> Result<()> {
        let dest_qpn = required(attr.dest_qp_num, "dest_qp_num", QpState::Rtr)?;
        let path = required(attr.ah, "ah (the path to the peer)", QpState::Rtr)?;
        required(attr.path_mtu, "path_mtu", QpState::Rtr)?;
        required(attr.rq_psn, "rq_psn", QpState::Rtr)?;
        if self.core.transport() == Connected::Reliable {
            required(attr.max_dest_rd_atomic, "max_dest_rd_atomic", QpState::Rtr)?;
            required(attr.min_rnr_timer, "min_rnr_timer", QpState::Rtr)?;
        }
        self.core.process.require_reachable(OP, path.dgid)?;
        if dest_qpn >> 24 != 0 {
            return Err(Error::invalid(OP, format!("queue pair number {dest_qpn:#x} has more than 24 bits")));
        }
        if let Some(timer) = attr.min_rnr_timer {
            self.core.set_rnr_timer(timer);
        }
        self.access = attr.access.unwrap_or(self.access);
        self.core.set_dest_qpn(dest_qpn);
        // SAFETY: we are the owner of the queue pair.
        let mut send = unsafe { self.core.send.owner() };
        send.dest_qpn = dest_qpn;
        // A peer that does not answer at once is asked again by the first request.
        self.core.connect(&mut send).map(drop)
    }

    /// What the peer may do from now on. An access that was allowed before and is under way is waited for, unless the
    /// peer is stopped inside it.
    fn change_access(&mut self, access: Access) {
        self.access = access;
        self.core.open(Accept::new(self.core.dest_qpn(), access));
        fence::heavy();
        self.core.wait_clear(Instant::now() + HAZARD_WAIT, |hazard| hazard != 0);
        if self.core.state() == QpState::Err {
            // It failed meanwhile, and stays closed.
            self.core.close();
        }
    }

    fn enter_rts(&mut self, attr: &QpAttr, from: QpState) -> Result<()> {
        if from == QpState::Rtr {
            required(attr.sq_psn, "sq_psn", QpState::Rts)?;
        }
        if from == QpState::Rtr && self.core.transport() == Connected::Reliable {
            required(attr.timeout, "timeout", QpState::Rts)?;
            required(attr.retry_cnt, "retry_cnt", QpState::Rts)?;
            required(attr.rnr_retry, "rnr_retry", QpState::Rts)?;
            required(attr.max_rd_atomic, "max_rd_atomic", QpState::Rts)?;
        }
        self.change(attr);
        Ok(())
    }

    /// What may be changed while it is connected.
    fn change(&mut self, attr: &QpAttr) {
        if let Some(access) = attr.access {
            self.change_access(access);
        }
        if let Some(timer) = attr.min_rnr_timer {
            self.core.set_rnr_timer(timer);
        }
        (self.timeout, self.retry_cnt) =
            (attr.timeout.unwrap_or(self.timeout), attr.retry_cnt.unwrap_or(self.retry_cnt));
        // SAFETY: we are the owner of the queue pair.
        let mut send = unsafe { self.core.send.owner() };
        if attr.timeout.is_some() || attr.retry_cnt.is_some() {
            let one = Duration::from_nanos(4_096 << u32::from(self.timeout & 31));
            send.timers.transport = (self.timeout != 0).then(|| one * (u32::from(self.retry_cnt & 7) + 1));
        }
        if let Some(retries) = attr.rnr_retry {
            send.timers.rnr_retries = (retries & 7 != 7).then_some(retries & 7);
        }
    }

    /// To RTS; from SQD sends go on.
    fn go_on_sending(&mut self, from: QpState) -> Result<()> {
        // Within a state there is nothing to set, and a failure meanwhile must not be forgotten.
        if from != QpState::Rts && !self.core.change_state(from, QpState::Rts) {
            return Err(self.failed_meanwhile());
        }
        if from == QpState::Rtr {
            self.core.want_greeting(false);
        }
        if from == QpState::Sqd {
            // SAFETY: we are the owner of the queue pair.
            unsafe { self.core.send.owner() }.end_drain(&self.core);
            self.core.after_leaving_sends();
        }
        Ok(())
    }

    /// Lets what is under way end, and holds back what is posted from now on.
    fn enter_sqd(&mut self, attr: &QpAttr, from: QpState) -> Result<()> {
        if from == QpState::Rts {
            // SAFETY: we are the owner of the queue pair.
            let mut send = unsafe { self.core.send.owner() };
            if !self.core.change_state(from, QpState::Sqd) {
                drop(send);
                return Err(self.failed_meanwhile());
            }
            send.begin_drain(&self.core, attr.en_sqd_async_notify == Some(true));
            return Ok(());
        }
        if let Some(path) = attr.ah {
            self.core.process.require_reachable(OP, path.dgid)?;
        }
        self.change(attr);
        Ok(())
    }

    fn failed_meanwhile(&self) -> Error {
        Error::InvalidState {
            operation: OP,
            object: format!("queue pair {:#x}", self.core.qpn()),
            state: self.core.state().to_string(),
            remedy: "it failed meanwhile: reset it",
        }
    }
}
