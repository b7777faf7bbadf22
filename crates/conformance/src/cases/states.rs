//! The queue pair state machine: every transition, its attributes, and what can be posted in which state.

use farcall_verbs::{Access, OpCaps, QpAttr, QpState, QpType, WcStatus};

use crate::case::{Feature, Table};
use crate::finding::{Verdict, refused, same};
use crate::op::{Op, TRANSPORTS, operations, transport_name};
use crate::peer::{Peer, connect, join};
use crate::setup::{ALL_ACCESS, Setup};

const SOURCE: &str = "IBA 10.3.1, 11.2.4.2; ibv_modify_qp(3)";
const REMOTE: u64 = 4096;
/// The states that a transition leads to in the end.
const REACHED: [QpState; 6] =
    [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Err];

/// Removes one attribute.
type Without = (&'static str, fn(&mut QpAttr));

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
        for state in REACHED {
            if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
                let name =
                    format!("{}/{}/state/refused-in-{}", transport_name(qp_type), op.name(), word(state));
                table
                    .add(name, "IBA 10.3.1; ibv_post_send(3)", move |a, b| no_send(a, b, qp_type, op, state))
                    .needs(qp_type, op.caps());
            }
        }
        let name = format!("{}/{}/state/flushed-in-err", transport_name(qp_type), op.name());
        table.add(name, "IBA 10.3.1.7", move |a, b| flushed(a, b, qp_type, op)).needs(qp_type, op.caps());
        let name = format!("{}/{}/state/served-in-rtr", transport_name(qp_type), op.name());
        table
            .add(name, "IBA 10.3.1.3", move |a, b| served_in_rtr(a, b, qp_type, op))
            .needs(qp_type, op.caps());
    }
    for qp_type in TRANSPORTS {
        receives(table, qp_type);
    }
    attributes(table);
}

fn word(state: QpState) -> String {
    state.to_string().to_lowercase()
}

/// Equips both and brings `a`'s queue pair to a state.
fn bring_to(a: &mut Peer, b: &mut Peer, setup: &Setup, state: QpState) -> Verdict {
    a.equip(setup)?;
    b.equip(setup)?;
    let to = b.address(b.qp);
    b.modify(b.qp, b.init_attr(setup))?;
    let path = [QpState::Init, QpState::Rtr, QpState::Rts];
    let last = match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        _ => 3,
    };
    for step in path.into_iter().take(last) {
        let attr = attr_to(a, setup, &to, step);
        a.modify(a.qp, attr)?;
    }
    if matches!(state, QpState::Sqd | QpState::Err) {
        a.modify(a.qp, QpAttr::to(state))?;
    }
    a.expect_state(a.qp, state)?;
    if setup.qp_type == QpType::Ud {
        a.ah = a.new_ah(&to)?;
    }
    Ok(())
}

fn attr_to(a: &Peer, setup: &Setup, to: &crate::peer::Address, state: QpState) -> QpAttr {
    match state {
        QpState::Init => a.init_attr(setup),
        QpState::Rtr => a.rtr_attr(setup, to),
        QpState::Rts => a.rts_attr(setup),
        other => QpAttr::to(other),
    }
}

fn transition(table: &mut Table, qp_type: QpType, from: QpState, to: QpState) {
    let how = if from.may_become(to) { "to" } else { "not-to" };
    let name = format!("{}/transition/{}-{how}-{}", transport_name(qp_type), word(from), word(to));
    let case = table.add(name, SOURCE, move |a, b| {
        let setup = Setup::new(qp_type);
        bring_to(a, b, &setup, from)?;
        let address = b.address(b.qp);
        // On the way up everything is named; later only the state.
        let whole = matches!(from, QpState::Reset | QpState::Init | QpState::Rtr) || !from.may_become(to);
        let attr = if whole { attr_to(a, &setup, &address, to) } else { QpAttr::to(to) };
        if from.may_become(to) {
            a.modify(a.qp, attr)?;
            return a.expect_state(a.qp, to);
        }
        refused(&format!("{from} to {to}"), a.modify(a.qp, attr))?;
        same("the state after the refusal", a.state(a.qp)?, from)
    });
    case.needs(qp_type, OpCaps::SEND);
    if from == QpState::Sqd || to == QpState::Sqd {
        case.optional(Feature::SendQueueDrain);
    }
}

fn required(table: &mut Table, qp_type: QpType) {
    let init: &[Without] = match qp_type {
        QpType::Ud => &[
            ("port-num", |attr| attr.port_num = None),
            ("pkey-index", |attr| attr.pkey_index = None),
            ("qkey", |attr| attr.qkey = None),
        ],
        _ => &[
            ("port-num", |attr| attr.port_num = None),
            ("pkey-index", |attr| attr.pkey_index = None),
            ("access", |attr| attr.access = None),
        ],
    };
    let connected: &[Without] = &[
        ("ah", |attr| attr.ah = None),
        ("path-mtu", |attr| attr.path_mtu = None),
        ("dest-qp-num", |attr| attr.dest_qp_num = None),
        ("rq-psn", |attr| attr.rq_psn = None),
        ("max-dest-rd-atomic", |attr| attr.max_dest_rd_atomic = None),
        ("min-rnr-timer", |attr| attr.min_rnr_timer = None),
    ];
    let rtr = match qp_type {
        QpType::Ud => &[],
        QpType::Uc => &connected[..4],
        _ => connected,
    };
    let reliable: &[Without] = &[
        ("sq-psn", |attr| attr.sq_psn = None),
        ("timeout", |attr| attr.timeout = None),
        ("retry-cnt", |attr| attr.retry_cnt = None),
        ("rnr-retry", |attr| attr.rnr_retry = None),
        ("max-rd-atomic", |attr| attr.max_rd_atomic = None),
    ];
    let rts = if qp_type == QpType::Rc { reliable } else { &reliable[..1] };
    let steps = [
        (QpState::Reset, QpState::Init, init),
        (QpState::Init, QpState::Rtr, rtr),
        (QpState::Rtr, QpState::Rts, rts),
    ];
    for (from, to, attributes) in steps {
        for (what, remove) in attributes.iter().copied() {
            let name = format!("{}/transition/{}-needs-{what}", transport_name(qp_type), word(to));
            table
                .add(name, SOURCE, move |a, b| {
                    let setup = Setup::new(qp_type);
                    bring_to(a, b, &setup, from)?;
                    let address = b.address(b.qp);
                    let whole = attr_to(a, &setup, &address, to);
                    let mut attr = whole;
                    remove(&mut attr);
                    refused(&format!("to {to} without {what}"), a.modify(a.qp, attr))?;
                    same("the state after the refusal", a.state(a.qp)?, from)?;
                    // Nothing is spoiled.
                    a.modify(a.qp, whole)?;
                    a.expect_state(a.qp, to)
                })
                .needs(qp_type, OpCaps::SEND);
        }
    }
}

fn no_send(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op, state: QpState) -> Verdict {
    bring_to(a, b, &Setup::new(qp_type), state)?;
    let refusal = refused("a send request", a.post(op.request(1, a, b, 8, REMOTE)))?;
    same("requests posted", refusal.posted, 0)?;
    same("state", a.state(a.qp)?, state)?;
    a.expect_quiet()
}

fn flushed(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op) -> Verdict {
    bring_to(a, b, &Setup::new(qp_type), QpState::Err)?;
    a.post(op.request(1, a, b, 8, REMOTE))?;
    a.post(op.request(2, a, b, 8, REMOTE).unsignaled())?;
    a.expect(1, WcStatus::WR_FLUSH_ERR)?;
    a.expect(2, WcStatus::WR_FLUSH_ERR)?;
    same("the target's word", b.word(REMOTE)?, 0)
}

/// The target stays in RTR; receives posted in INIT count.
fn served_in_rtr(a: &mut Peer, b: &mut Peer, qp_type: QpType, op: Op) -> Verdict {
    let setup = Setup::new(qp_type);
    a.equip(&setup)?;
    b.equip(&setup)?;
    let (to_a, to_b) = (a.address(a.qp), b.address(b.qp));
    a.modify(a.qp, a.init_attr(&setup))?;
    b.modify(b.qp, b.init_attr(&setup))?;
    if op.consumes_receive() {
        b.recv(1, 0, 64)?;
    }
    b.modify(b.qp, b.rtr_attr(&setup, &to_a))?;
    a.modify(a.qp, a.rtr_attr(&setup, &to_b))?;
    a.modify(a.qp, a.rts_attr(&setup))?;
    if qp_type == QpType::Ud {
        a.ah = a.new_ah(&to_b)?;
    }
    a.post(op.request(2, a, b, 8, REMOTE))?;
    a.expect_ok(2)?;
    if op.consumes_receive() {
        b.expect_ok(1)?;
    }
    same("state of the target", b.state(b.qp)?, QpState::Rtr)
}

fn receives(table: &mut Table, qp_type: QpType) {
    let name = |what: &str| format!("{}/recv/state/{what}", transport_name(qp_type));
    table
        .add(name("refused-in-reset"), "IBA 10.3.1.1", move |a, b| {
            bring_to(a, b, &Setup::new(qp_type), QpState::Reset)?;
            refused("a receive", a.recv(1, 0, 64))?;
            same("state", a.state(a.qp)?, QpState::Reset)
        })
        .needs(qp_type, OpCaps::SEND);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        table
            .add(name(&format!("accepted-in-{}", word(state))), "IBA 10.3.1", move |a, b| {
                bring_to(a, b, &Setup::new(qp_type), state)?;
                a.recv(1, 0, 64)?;
                a.expect_quiet()?;
                a.fail_qp()?;
                a.expect(1, WcStatus::WR_FLUSH_ERR)?;
                Ok(())
            })
            .needs(qp_type, OpCaps::SEND);
    }
    table
        .add(name("flushed-in-err"), "IBA 10.3.1.7", move |a, b| {
            bring_to(a, b, &Setup::new(qp_type), QpState::Err)?;
            a.recv(1, 0, 64)?;
            a.expect(1, WcStatus::WR_FLUSH_ERR)?;
            Ok(())
        })
        .needs(qp_type, OpCaps::SEND);
}

/// Attributes that may be changed where the state stays (IBA 11.2.4.2, optional attributes).
fn attributes(table: &mut Table) {
    table
        .add("rc/transition/rts-takes-access-away", SOURCE, |a, b| {
            join(a, b, &Setup::rc())?;
            let less = ALL_ACCESS - Access::REMOTE_WRITE;
            b.modify(b.qp, QpAttr { access: Some(less), ..QpAttr::to(QpState::Rts) })?;
            a.post(Op::Write.request(1, a, b, 8, REMOTE))?;
            a.expect(1, WcStatus::REM_INV_REQ_ERR)?;
            same("the target's word", b.word(REMOTE)?, 0)
        })
        .needs(QpType::Rc, OpCaps::WRITE);
    table
        .add("rc/transition/rts-takes-access-away-after-use", SOURCE, |a, b| {
            join(a, b, &Setup::rc())?;
            // Whatever the initiator keeps of what it was granted, it keeps by now.
            for id in 0..3 {
                a.post(Op::Write.request(id, a, b, 8, REMOTE))?;
                a.expect_ok(id)?;
            }
            let less = ALL_ACCESS - Access::REMOTE_WRITE;
            b.modify(b.qp, QpAttr { access: Some(less), ..QpAttr::to(QpState::Rts) })?;
            a.put(0, &[1; 8])?;
            a.post(Op::Write.request(9, a, b, 8, REMOTE))?;
            a.expect(9, WcStatus::REM_INV_REQ_ERR)?;
            same("the target's word", b.word(REMOTE)?, 0)
        })
        .needs(QpType::Rc, OpCaps::WRITE);
    table
        .add("rc/transition/rts-gives-access", SOURCE, |a, b| {
            join(a, b, &Setup { qp_access: Access::LOCAL_WRITE, ..Setup::rc() })?;
            b.modify(b.qp, QpAttr { access: Some(ALL_ACCESS), ..QpAttr::to(QpState::Rts) })?;
            a.post(Op::Write.request(1, a, b, 8, REMOTE))?;
            a.expect_ok(1)?;
            Ok(())
        })
        .needs(QpType::Rc, OpCaps::WRITE);
    table
        .add("rc/transition/init-again-replaces-access", SOURCE, |a, b| {
            let setup = Setup::rc();
            a.equip(&setup)?;
            b.equip(&setup)?;
            b.modify(b.qp, QpAttr::init(ALL_ACCESS))?;
            b.modify(b.qp, QpAttr::init(ALL_ACCESS - Access::REMOTE_WRITE))?;
            let (to_a, to_b) = (a.address(a.qp), b.address(b.qp));
            b.modify(b.qp, b.rtr_attr(&setup, &to_a))?;
            a.modify(a.qp, a.init_attr(&setup))?;
            a.modify(a.qp, a.rtr_attr(&setup, &to_b))?;
            a.modify(a.qp, a.rts_attr(&setup))?;
            a.post(Op::Write.request(1, a, b, 8, REMOTE))?;
            a.expect(1, WcStatus::REM_INV_REQ_ERR)?;
            Ok(())
        })
        .needs(QpType::Rc, OpCaps::WRITE);
    table
        .add("rc/transition/reset-begins-anew", SOURCE, |a, b| {
            let setup = Setup::rc();
            join(a, b, &setup)?;
            for round in 0..5 {
                b.recv(round, 0, 64)?;
                a.post(Op::Send.request(round, a, b, 8, 0))?;
                a.expect_ok(round)?;
                b.expect_ok(round)?;
                // Left behind: forgotten without completions.
                a.recv(100, 0, 64)?;
                b.recv(101, 0, 64)?;
                a.post(Op::Send.request(102, a, b, 8, 0).unsignaled())?;
                a.modify(a.qp, QpAttr::to(QpState::Reset))?;
                b.modify(b.qp, QpAttr::to(QpState::Reset))?;
                a.expect_quiet()?;
                // The SEND may have arrived before its target was reset; its completion went with the reset.
                while b.poll()?.is_some() {}
                connect(a, a.qp, b, b.qp, &setup)?;
            }
            Ok(())
        })
        .needs(QpType::Rc, OpCaps::SEND);
    table
        .add("rc/transition/a-wrong-port-is-refused", SOURCE, |a, b| {
            let setup = Setup::rc();
            bring_to(a, b, &setup, QpState::Reset)?;
            for port in [0, 200] {
                let attr = QpAttr { port_num: Some(port), ..a.init_attr(&setup) };
                refused(&format!("port {port}"), a.modify(a.qp, attr))?;
                same("the state after the refusal", a.state(a.qp)?, QpState::Reset)?;
            }
            Ok(())
        })
        .needs(QpType::Rc, OpCaps::SEND);
}
