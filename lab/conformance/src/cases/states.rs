//! The queue pair state machine: every transition, its attributes, and the requests that can be posted in each state.

use farcall_verbs::{Access, QpAttr, QpState, QpType, Transition, WcStatus, WrOpcode};

use crate::case::{Body, Feature, Table};
use crate::end::{Address, End, connect, deliver, equip, half_join};
use crate::finding::{Verdict, refused, same};
use crate::op::{SEND, TRANSPORTS, WRITE, operations, transport_name};
use crate::setup::{ALL_ACCESS, Setup};

const SOURCE: &str = "IBA 10.3.1, 11.2.4.2; ibv_modify_qp(3)";
const REMOTE: u64 = 4096;
/// States in which a transition can end.
const REACHED: [QpState; 6] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];

/// Name of an attribute, and a function that removes it.
type Without = (&'static str, fn(&mut QpAttr));

macro_rules! without {
    ($($attribute:ident)+) => {{
        let all: &'static [Without] = &[$((stringify!($attribute), |attr| attr.$attribute = None)),+];
        all
    }};
}

pub(super) fn add(table: &mut Table) {
    for qp_type in TRANSPORTS {
        for from in REACHED {
            for to in REACHED {
                transition(table, qp_type, from, to);
            }
        }
        required(table, qp_type);
    }
    for (qp_type, op) in operations() {
        for state in [QpState::Reset, QpState::Init, QpState::Rtr] {
            let (what, source) =
                (format!("state/refused-in-{}", word(state)), "IBA 10.3.1; ibv_post_send(3)");
            table.op_case_apart(qp_type, op, &what, source, move |a, b, qp_type, op| {
                bring_to(a, b, &Setup::new(qp_type), state)?;
                let refusal = refused("a send request", a.post(a.request(op, 1, b, 8, REMOTE)))?;
                same("requests posted", refusal.posted, 0)?;
                same("state", a.state(a.qp)?, state)?;
                a.expect_quiet()
            });
        }
        table.op_case_apart(qp_type, op, "state/flushed-in-err", "IBA 10.3.1.7", flushed);
        table.op_case_apart(qp_type, op, "state/served-in-rtr", "IBA 10.3.1.3", served_in_rtr);
    }
    for qp_type in TRANSPORTS {
        receives(table, qp_type);
    }
    attributes(table);
}

fn word(state: QpState) -> String {
    state.to_string().to_lowercase()
}

/// Equips both ends and moves `a`'s queue pair to a state. Returns the address of `b`'s queue pair.
fn bring_to(a: &mut End, b: &mut End, setup: &Setup, state: QpState) -> Verdict<Address> {
    equip(a, b, setup)?;
    let to = b.address(b.qp);
    b.modify(b.qp, b.init_attr())?;
    match state {
        QpState::Reset => {}
        QpState::Init | QpState::Rtr | QpState::Rts => a.bring_up(a.qp, state, &to)?,
        _ => {
            a.bring_up(a.qp, QpState::Rts, &to)?;
            a.move_to(a.qp, state)?;
        }
    }
    a.expect_state(a.qp, state)?;
    if setup.qp_type == QpType::Ud {
        a.ah = a.new_ah(&to)?;
    }
    Ok(to)
}

fn transition(table: &mut Table, qp_type: QpType, from: QpState, to: QpState) {
    let is_legal = Transition::of(qp_type, from, to).is_some();
    let how = if is_legal { "to" } else { "not-to" };
    let name = format!("{}/transition/{}-{how}-{}", transport_name(qp_type), word(from), word(to));
    let case = table.add(name, SOURCE, move |a, b| {
        let to_b = bring_to(a, b, &Setup::new(qp_type), from)?;
        // Transitions towards RTS specify all attributes, later ones only the state.
        let whole = matches!(from, QpState::Reset | QpState::Init | QpState::Rtr) || !is_legal;
        let attr = if whole { a.attr_to(to, &to_b) } else { QpAttr::to(to) };
        if is_legal {
            if from == QpState::Sqd && to != QpState::Err {
                // A queue that is still being drained cannot leave SQD, and the duration of draining has no bound.
                a.until("the queue to be drained and leave SQD", |a| Ok(a.modify(a.qp, attr).ok()))?;
            } else {
                a.modify(a.qp, attr)?;
            }
            return a.expect_state(a.qp, to);
        }
        refused(&format!("{from} to {to}"), a.modify(a.qp, attr))?;
        same("the state after the refusal", a.state(a.qp)?, from)
    });
    case.needs(qp_type, SEND);
    if from == QpState::Sqd || to == QpState::Sqd {
        case.optional(Feature::SendQueueDrain);
    }
}

fn required(table: &mut Table, qp_type: QpType) {
    let init = match qp_type {
        QpType::Ud => without![port_num pkey_index qkey],
        _ => without![port_num pkey_index access],
    };
    let connected = without![ah path_mtu dest_qp_num rq_psn max_dest_rd_atomic min_rnr_timer];
    let rtr = match qp_type {
        QpType::Ud => &[],
        QpType::Uc => &connected[..4],
        _ => connected,
    };
    let reliable = without![sq_psn timeout retry_cnt rnr_retry max_rd_atomic];
    let rts = if qp_type == QpType::Rc { reliable } else { &reliable[..1] };
    let steps = [
        (QpState::Reset, QpState::Init, init),
        (QpState::Init, QpState::Rtr, rtr),
        (QpState::Rtr, QpState::Rts, rts),
    ];
    for (from, to, attributes) in steps {
        for (what, remove) in attributes.iter().copied() {
            let what = what.replace('_', "-");
            let name = format!("{}/transition/{}-needs-{what}", transport_name(qp_type), word(to));
            table
                .add(name, SOURCE, move |a, b| {
                    let to_b = bring_to(a, b, &Setup::new(qp_type), from)?;
                    let whole = a.attr_to(to, &to_b);
                    let mut attr = whole;
                    remove(&mut attr);
                    refused(&format!("to {to} without {what}"), a.modify(a.qp, attr))?;
                    same("the state after the refusal", a.state(a.qp)?, from)?;
                    // The refusal had no effect: the complete attributes are accepted.
                    a.modify(a.qp, whole)?;
                    a.expect_state(a.qp, to)
                })
                .needs(qp_type, SEND);
        }
    }
}

fn flushed(a: &mut End, b: &mut End, qp_type: QpType, op: WrOpcode) -> Verdict {
    bring_to(a, b, &Setup::new(qp_type), QpState::Err)?;
    a.post(a.request(op, 1, b, 8, REMOTE))?;
    a.post(a.request(op, 2, b, 8, REMOTE).unsignaled())?;
    a.expect(1, WcStatus::WR_FLUSH_ERR)?;
    a.expect(2, WcStatus::WR_FLUSH_ERR)?;
    same("the target's word", b.word(REMOTE)?, 0)
}

/// The target remains in RTR; receives posted in INIT are used.
fn served_in_rtr(a: &mut End, b: &mut End, qp_type: QpType, op: WrOpcode) -> Verdict {
    let rtr = half_join(a, b, &Setup::new(qp_type))?;
    b.recv_for(op, 1, REMOTE * 2, 64)?;
    b.modify(b.qp, rtr)?;
    a.complete(a.request(op, 2, b, 8, REMOTE))?;
    b.expect_received(op, 1)?;
    same("state of the target", b.state(b.qp)?, QpState::Rtr)
}

fn receives(table: &mut Table, qp_type: QpType) {
    let mut case = |what: String, source, state, body: Body| {
        let name = format!("{}/recv/state/{what}", transport_name(qp_type));
        let in_state = move |a: &mut End, b: &mut End| {
            bring_to(a, b, &Setup::new(qp_type), state)?;
            body(a, b)
        };
        table.add(name, source, in_state).needs(qp_type, SEND);
    };
    case("refused-in-reset".into(), "IBA 10.3.1.1", QpState::Reset, |a, _| {
        refused("a receive", a.recv(1, 0, 64))?;
        same("state", a.state(a.qp)?, QpState::Reset)
    });
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        case(format!("accepted-in-{}", word(state)), "IBA 10.3.1", state, |a, _| {
            a.recv(1, 0, 64)?;
            a.expect_quiet()?;
            a.fail_qp()?;
            a.expect(1, WcStatus::WR_FLUSH_ERR)
        });
    }
    case("flushed-in-err".into(), "IBA 10.3.1.7", QpState::Err, |a, _| {
        a.recv(1, 0, 64)?;
        a.expect(1, WcStatus::WR_FLUSH_ERR)
    });
}

/// Attributes that can be changed without a change of state (IBA 11.2.4.2, optional attributes).
fn attributes(table: &mut Table) {
    // Three uses, so that the initiator has cached its grant if it caches grants.
    for (name, uses) in [("takes-access-away", 0), ("takes-access-away-after-use", 3)] {
        table.rc(format!("rc/transition/rts-{name}"), WRITE, SOURCE, move |a, b| {
            for id in 0..uses {
                a.complete(a.request(WrOpcode::WRITE, id, b, 8, REMOTE))?;
            }
            let less = ALL_ACCESS - Access::REMOTE_WRITE;
            b.modify(b.qp, QpAttr { access: Some(less), ..QpAttr::to(QpState::Rts) })?;
            a.put(0, &[1; 8])?;
            a.complete_as(a.request(WrOpcode::WRITE, 9, b, 8, REMOTE), WcStatus::REM_INV_REQ_ERR)?;
            same("the target's word", b.word(REMOTE)?, 0)
        });
    }
    let closed = Setup { qp_access: Access::LOCAL_WRITE, ..Setup::rc() };
    table.joined(closed, "rc/transition/rts-gives-access", WRITE, SOURCE, |a, b| {
        b.modify(b.qp, QpAttr { access: Some(ALL_ACCESS), ..QpAttr::to(QpState::Rts) })?;
        a.complete(a.request(WrOpcode::WRITE, 1, b, 8, REMOTE))
    });
    let again = table.add("rc/transition/init-again-replaces-access", SOURCE, |a, b| {
        let rtr = half_join(a, b, &Setup::rc())?;
        b.modify(b.qp, QpAttr::init(ALL_ACCESS - Access::REMOTE_WRITE))?;
        b.modify(b.qp, rtr)?;
        a.complete_as(a.request(WrOpcode::WRITE, 1, b, 8, REMOTE), WcStatus::REM_INV_REQ_ERR)
    });
    again.needs(QpType::Rc, WRITE);
    table.rc("rc/transition/reset-begins-anew", SEND, SOURCE, |a, b| {
        for round in 0..5 {
            b.recv(round, 0, 64)?;
            deliver(a, b, round, round)?;
            // Left outstanding: the reset drops them without completions.
            a.recv(100, 0, 64)?;
            b.recv(101, 0, 64)?;
            a.post(a.request(WrOpcode::SEND, 102, b, 8, 0).unsignaled())?;
            a.move_to(a.qp, QpState::Reset)?;
            b.move_to(b.qp, QpState::Reset)?;
            a.expect_quiet()?;
            // The SEND may have arrived before its target was reset, which also dropped its completion.
            while b.poll()?.is_some() {}
            connect(a, a.qp, b, b.qp)?;
        }
        Ok(())
    });
    let port = table.add("rc/transition/a-wrong-port-is-refused", SOURCE, |a, b| {
        equip(a, b, &Setup::rc())?;
        for port in [0, 200] {
            let attr = QpAttr { port_num: Some(port), ..a.init_attr() };
            refused(&format!("port {port}"), a.modify(a.qp, attr))?;
            same("the state after the refusal", a.state(a.qp)?, QpState::Reset)?;
        }
        Ok(())
    });
    port.needs(QpType::Rc, SEND);
}
