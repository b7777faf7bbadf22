//! State transitions and connections of queue pairs.

use farcall_verbs::{AhAttr, Gid, Mtu, QpAttr, QpState, QpType, RnrTimer};

use super::{End, answer};
use crate::executor::{Answer, Call, Qp, QpInit, Refusal};
use crate::finding::Verdict;
use crate::setup::{QKEY, Setup};

/// States on the way to RTS.
const UPWARDS: [QpState; 3] = [QpState::Init, QpState::Rtr, QpState::Rts];

/// Address of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) gid: Gid,
    pub(crate) lid: u16,
    pub(crate) qpn: u32,
    /// Maximum length of packets that its port accepts.
    pub(crate) mtu: Mtu,
}

impl End {
    pub(crate) fn address(&self, qp: Qp) -> Address {
        let port = &self.about.port;
        Address { gid: self.about.gid, lid: port.lid, qpn: qp.qpn, mtu: port.active_mtu }
    }

    pub(crate) fn path(&self, to: &Address) -> AhAttr {
        AhAttr {
            dgid: to.gid,
            sgid_index: self.about.gid_index,
            dlid: to.lid,
            port_num: 1,
            ..AhAttr::default()
        }
    }

    pub(crate) fn init_attr(&self) -> QpAttr {
        let attr = QpAttr::init(self.setup.qp_access);
        match self.setup.qp_type {
            QpType::Ud => QpAttr { access: None, qkey: Some(QKEY), ..attr },
            _ => attr,
        }
    }

    pub(crate) fn rtr_attr(&self, to: &Address) -> QpAttr {
        let rc = QpAttr {
            max_dest_rd_atomic: Some(self.setup.rd_atomic),
            min_rnr_timer: Some(RnrTimer(self.setup.min_rnr_timer)),
            ..QpAttr::rtr(to.qpn, 0, self.path(to), self.about.port.active_mtu.min(to.mtu))
        };
        match self.setup.qp_type {
            QpType::Uc => QpAttr { max_dest_rd_atomic: None, min_rnr_timer: None, ..rc },
            QpType::Ud => QpAttr::to(QpState::Rtr),
            _ => rc,
        }
    }

    pub(crate) fn rts_attr(&self) -> QpAttr {
        let setup = &self.setup;
        if setup.qp_type != QpType::Rc {
            return QpAttr { sq_psn: Some(0), ..QpAttr::to(QpState::Rts) };
        }
        // About ten seconds with seven retries, because a busy machine is not an unreachable peer.
        let (timeout, retry_cnt) = if setup.is_impatient { self.pace().quick_retry } else { (18, 7) };
        QpAttr {
            timeout: Some(setup.timeout.unwrap_or(timeout)),
            retry_cnt: Some(retry_cnt),
            rnr_retry: Some(setup.rnr_retry),
            max_rd_atomic: Some(setup.rd_atomic),
            ..QpAttr::rts(0)
        }
    }

    /// Returns the attributes of the transition to a state from its predecessor.
    pub(crate) fn attr_to(&self, state: QpState, to: &Address) -> QpAttr {
        match state {
            QpState::Init => self.init_attr(),
            QpState::Rtr => self.rtr_attr(to),
            QpState::Rts => self.rts_attr(),
            other => QpAttr::to(other),
        }
    }

    /// Moves a queue pair from RESET to INIT, RTR or RTS.
    pub(crate) fn bring_up(&mut self, qp: Qp, last: QpState, to: &Address) -> Result<(), Refusal> {
        for state in UPWARDS {
            self.modify(qp, self.attr_to(state, to))?;
            if state == last {
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn modify(&mut self, qp: Qp, attr: QpAttr) -> Result<(), Refusal> {
        self.done(&Call::Modify { qp: qp.handle, change: attr })
    }

    pub(crate) fn state(&mut self, qp: Qp) -> Result<QpState, Refusal> {
        answer!(self.call(&Call::State(qp.handle))?, Answer::State(state) => state)
    }

    /// Moves a queue pair to a state that needs no attributes.
    pub(crate) fn move_to(&mut self, qp: Qp, state: QpState) -> Result<(), Refusal> {
        self.modify(qp, QpAttr::to(state))
    }

    /// Moves the queue pair of the case to the error state.
    pub(crate) fn fail_qp(&mut self) -> Result<(), Refusal> {
        self.move_to(self.qp, QpState::Err)
    }
}

/// Connects two queue pairs in RESET; both reach RTS.
pub(crate) fn connect(a: &mut End, qa: Qp, b: &mut End, qb: Qp) -> Verdict {
    let (to_a, to_b) = (a.address(qa), b.address(qb));
    for state in UPWARDS {
        a.modify(qa, a.attr_to(state, &to_b))?;
        b.modify(qb, b.attr_to(state, &to_a))?;
    }
    Ok(())
}

/// Equips two ends and moves `a` to RTS, connected to `b`, which remains in INIT. Returns the attributes that move `b`
/// to RTR.
pub(crate) fn half_join(a: &mut End, b: &mut End, setup: &Setup) -> Verdict<QpAttr> {
    equip(a, b, setup)?;
    let (to_a, to_b) = (a.address(a.qp), b.address(b.qp));
    b.modify(b.qp, b.init_attr())?;
    a.bring_up(a.qp, QpState::Rts, &to_b)?;
    if setup.qp_type == QpType::Ud {
        a.ah = a.new_ah(&to_b)?;
    }
    Ok(b.rtr_attr(&to_a))
}

/// Resets the case's queue pairs and connects them again.
pub(crate) fn reconnect(a: &mut End, b: &mut End) -> Verdict {
    a.move_to(a.qp, QpState::Reset)?;
    b.move_to(b.qp, QpState::Reset)?;
    connect(a, a.qp, b, b.qp)
}

/// Creates another queue pair at each end, and connects them.
pub(crate) fn another_pair(a: &mut End, b: &mut End) -> Verdict<(Qp, Qp)> {
    another_pair_of(a, a.qp_init(), b, b.qp_init())
}

/// Like [`another_pair`], with other parameters than those of the case.
pub(crate) fn another_pair_of(a: &mut End, of_a: QpInit, b: &mut End, of_b: QpInit) -> Verdict<(Qp, Qp)> {
    let (qa, qb) = (a.new_qp(&of_a)?, b.new_qp(&of_b)?);
    connect(a, qa, b, qb)?;
    Ok((qa, qb))
}

/// Equips two ends.
pub(crate) fn equip(a: &mut End, b: &mut End, setup: &Setup) -> Verdict {
    a.equip(setup)?;
    b.equip(setup)
}

/// Equips two ends and connects them.
pub(crate) fn join(a: &mut End, b: &mut End, setup: &Setup) -> Verdict {
    equip(a, b, setup)?;
    connect(a, a.qp, b, b.qp)?;
    if setup.qp_type == QpType::Ud {
        (a.ah, b.ah) = (a.new_ah(&b.address(b.qp))?, b.new_ah(&a.address(a.qp))?);
    }
    Ok(())
}
