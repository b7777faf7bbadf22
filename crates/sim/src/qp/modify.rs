//! `modify_qp`: the state machine with its required attributes (IBA table 91).

use farcall_verbs::{Access, Error, QpAttr, QpState, QpType, Result};

use super::{Qp, Settings};
use crate::packet::Psn;
use crate::state::State;

const OP: &str = "modify_qp";

fn required<T>(value: Option<T>, name: &'static str, to: QpState) -> Result<T> {
    value.ok_or_else(|| Error::invalid(OP, format!("the transition to {to} needs {name}")))
}

fn in_24_bits(number: u32, name: &str) -> Result<u32> {
    if number >> 24 != 0 {
        return Err(Error::invalid(OP, format!("{name} {number:#x} has more than 24 bits")));
    }
    Ok(number)
}

impl Qp {
    pub(super) fn modify(&mut self, state: &mut State, attr: &QpAttr) -> Result<()> {
        let (from, to) = (self.state, attr.state.unwrap_or(self.state));
        let needs_no_transition = attr.state.is_none();
        let is_allowed = from.may_become(to)
            && !(to == QpState::Sqe)
            && !(from == QpState::Sqe && self.kind == QpType::Rc && to == QpState::Rts);
        if !is_allowed && !needs_no_transition {
            return Err(Error::InvalidState {
                operation: OP,
                object: format!("queue pair {:#x}", self.num),
                state: from.to_string(),
                remedy: "follow RESET → INIT → RTR → RTS; RESET and ERR are always allowed",
            });
        }
        match to {
            QpState::Reset => {
                self.settings = Settings::default();
                self.reset(state);
            }
            QpState::Err => self.enter_error(state),
            QpState::Init => {
                self.settings = self.init_settings(attr)?;
                self.set_state(state, to);
            }
            QpState::Rtr => {
                let (settings, psn) = self.rtr_settings(state, attr)?;
                self.settings = settings;
                self.responder.start(psn);
                self.set_state(state, to);
            }
            QpState::Rts => self.become_rts(state, attr, from)?,
            QpState::Sqd => {
                self.settings = self.later_settings(state, attr);
                self.tells_drained = attr.en_sqd_async_notify.unwrap_or(false);
                if from != QpState::Sqd {
                    self.set_state(state, to);
                    self.tell_if_drained(state);
                }
            }
            QpState::Sqe => {}
        }
        Ok(())
    }

    fn init_settings(&self, attr: &QpAttr) -> Result<Settings> {
        let to = QpState::Init;
        let port = required(attr.port_num, "port_num", to)?;
        if port != 1 {
            return Err(Error::invalid(OP, format!("port {port}: this device has port 1 only")));
        }
        required(attr.pkey_index, "pkey_index", to)?;
        let mut settings = self.settings;
        if self.kind == QpType::Ud {
            settings.qkey = required(attr.qkey, "qkey", to)?;
            settings.access = attr.access.unwrap_or(Access::empty());
        } else {
            settings.access = required(attr.access, "access", to)?;
        }
        Ok(settings)
    }

    fn rtr_settings(&self, state: &State, attr: &QpAttr) -> Result<(Settings, Psn)> {
        let to = QpState::Rtr;
        let mut settings = self.settings;
        settings.access = attr.access.unwrap_or(settings.access);
        if self.kind == QpType::Ud {
            settings.qkey = attr.qkey.unwrap_or(settings.qkey);
            return Ok((settings, Psn::new(0)));
        }
        settings.dest_qpn = in_24_bits(required(attr.dest_qp_num, "dest_qp_num", to)?, "dest_qp_num")?;
        let path = required(attr.ah, "ah (the path to the peer)", to)?;
        settings.peer = state.node_of(path.dgid);
        settings.mtu = required(attr.path_mtu, "path_mtu", to)?;
        let psn = in_24_bits(required(attr.rq_psn, "rq_psn", to)?, "rq_psn")?;
        if self.kind == QpType::Rc {
            settings.max_dest_rd_atomic = required(attr.max_dest_rd_atomic, "max_dest_rd_atomic", to)?;
            settings.rnr_timer = required(attr.min_rnr_timer, "min_rnr_timer", to)?;
            let limit = state.params.limits.rd_atomic;
            if settings.max_dest_rd_atomic > limit {
                let what = format!("max_dest_rd_atomic {}: up to {limit}", settings.max_dest_rd_atomic);
                return Err(Error::invalid(OP, what));
            }
        }
        Ok((settings, Psn::new(psn)))
    }

    fn become_rts(&mut self, state: &mut State, attr: &QpAttr, from: QpState) -> Result<()> {
        let to = QpState::Rts;
        let mut settings = self.later_settings(state, attr);
        if from == QpState::Rtr {
            let psn = in_24_bits(required(attr.sq_psn, "sq_psn", to)?, "sq_psn")?;
            if self.kind == QpType::Rc {
                settings.timeout = required(attr.timeout, "timeout", to)?;
                settings.retry_cnt = required(attr.retry_cnt, "retry_cnt", to)?;
                settings.rnr_retry = required(attr.rnr_retry, "rnr_retry", to)?;
                settings.max_rd_atomic = required(attr.max_rd_atomic, "max_rd_atomic", to)?;
                let limit = state.params.limits.rd_atomic;
                if settings.max_rd_atomic > limit {
                    let what = format!("max_rd_atomic {}: up to {limit}", settings.max_rd_atomic);
                    return Err(Error::invalid(OP, what));
                }
            }
            self.requester.start(Psn::new(psn));
        }
        self.settings = settings;
        self.renew_retries();
        self.set_state(state, to);
        let at_ns = state.effect_ns() + state.params.doorbell_ns;
        self.pump_at(state, at_ns);
        Ok(())
    }

    /// What may be changed from RTR on.
    fn later_settings(&self, state: &State, attr: &QpAttr) -> Settings {
        let now = self.settings;
        Settings {
            access: attr.access.unwrap_or(now.access),
            qkey: attr.qkey.unwrap_or(now.qkey),
            rnr_timer: attr.min_rnr_timer.unwrap_or(now.rnr_timer),
            timeout: attr.timeout.unwrap_or(now.timeout),
            retry_cnt: attr.retry_cnt.unwrap_or(now.retry_cnt),
            rnr_retry: attr.rnr_retry.unwrap_or(now.rnr_retry),
            max_rd_atomic: attr.max_rd_atomic.unwrap_or(now.max_rd_atomic).min(state.params.limits.rd_atomic),
            ..now
        }
    }
}
