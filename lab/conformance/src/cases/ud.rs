//! Datagrams.

use farcall_verbs::{QpState, QpType, WcFlags, WcStatus, WrOpcode};

use crate::case::{Body, Table};
use crate::end::{End, GRH_BYTES, IMM, another_pair, deliver, half_join, pattern};
use crate::executor::{Qp, SendRequest, Target};
use crate::finding::{Verdict, ensure, same, same_bytes};
use crate::op::SEND;
use crate::setup::{QKEY, Setup};

const SOURCE: &str = "IBA 9.8.3, 10.2.5; ibv_post_send(3), ibv_create_ah(3)";
const AT: u64 = 4096;

pub(super) fn add(table: &mut Table) {
    let ud = Setup::new(QpType::Ud);
    let mut case = |what, body: Body| {
        table.joined(ud, format!("ud/{what}"), SEND, SOURCE, body);
    };
    case("grh/forty-bytes-precede-the-message", grh);
    case("qkey/a-wrong-one-is-dropped-silently", |a, b| {
        dropped(a, b, Target::Datagram { ah: a.ah, qpn: b.qp.qpn, qkey: QKEY + 1 })
    });
    case("qkey/a-controlled-one-stands-for-the-pairs-own", |a, b| {
        b.recv_message(1, AT, 64)?;
        let target = Target::Datagram { ah: a.ah, qpn: b.qp.qpn, qkey: 0x8000_0000 };
        a.complete(SendRequest { target, ..a.request(WrOpcode::SEND, 1, b, 8, 0) })?;
        b.expect_ok(1)
    });
    case("send/to-an-unknown-number-is-dropped-silently", |a, b| {
        dropped(a, b, Target::Datagram { ah: a.ah, qpn: b.qp.qpn ^ 0x0040_0000, qkey: QKEY })
    });
    case("send/without-a-receive-is-dropped-silently", no_receive);
    case("send/longer-than-its-receive-fills-nothing-beyond", too_long);
    case("send/longer-than-the-mtu-is-refused", over_mtu);
    case("send/to-many", to_many);
    case("send/from-many", from_many);
    case("send/a-receiver-knows-the-sender", answer);
    let not_ready_name = "ud/send/to-a-pair-that-is-not-ready-is-dropped-silently";
    table.add(not_ready_name, SOURCE, not_ready).needs(QpType::Ud, SEND);
    table.joined(ud, "ud/send/an-exact-fit", SEND, SOURCE, exact_fit);
    super::uc::refused_operations(table, QpType::Ud);
    table
        .joined(ud, "ud/send/does-not-reach-a-connected-pair", SEND, SOURCE, to_connected)
        .needs(QpType::Rc, SEND);
}

fn grh(a: &mut End, b: &mut End) -> Verdict {
    let bytes = pattern(100, 1);
    a.put(0, &bytes)?;
    b.put(0, &vec![0x5A; 8192])?;
    b.recv(1, AT, 200)?;
    a.complete(a.request(WrOpcode::SEND, 1, b, 100, 0))?;
    let wc = b.expect_wc(1)?;
    same("byte_len", wc.byte_len, 100 + GRH_BYTES)?;
    ensure(wc.wc_flags.contains(WcFlags::GRH), || "the completion does not report the GRH".into())?;
    same_bytes("the message", &b.get(AT + u64::from(GRH_BYTES), 100)?, &bytes)?;
    same_bytes("before", &b.get(AT - 64, 64)?, &[0x5A; 64])?;
    same_bytes("after", &b.get(AT + 140, 60)?, &[0x5A; 60])
}

/// Sends a datagram that is dropped, followed by one that arrives.
fn dropped(a: &mut End, b: &mut End, target: Target) -> Verdict {
    b.recv_message(1, AT, 64)?;
    a.complete(SendRequest { target, ..a.request(WrOpcode::SEND, 1, b, 8, 0) })?;
    b.expect_quiet()?;
    a.put(0, &[9; 8])?;
    deliver(a, b, 2, 1)?;
    same_bytes("the second message", &b.get(AT, 8)?, &[9; 8])?;
    same("state of the target", b.state(b.qp)?, QpState::Rts)
}

fn no_receive(a: &mut End, b: &mut End) -> Verdict {
    // The destination is resolved once a datagram has arrived; the specification does not bound the delay of the first
    // one.
    b.recv_message(6, AT, 64)?;
    deliver(a, b, 6, 6)?;
    for id in 0..5 {
        a.complete_send(id, b)?;
    }
    b.expect_quiet()?;
    b.recv_message(7, AT, 64)?;
    b.expect_quiet()?;
    a.put(0, &[9; 8])?;
    deliver(a, b, 8, 7)?;
    same_bytes("the message", &b.get(AT, 8)?, &[9; 8])
}

fn too_long(a: &mut End, b: &mut End) -> Verdict {
    b.put(0, &vec![0x5A; 8192])?;
    b.recv_message(1, AT, 64)?;
    a.complete(a.request(WrOpcode::SEND, 1, b, 65, 0))?;
    // Implementations may drop it, or report an error to the receiver.
    b.pause();
    if let Some(wc) = b.poll()? {
        ensure(!wc.status.is_success(), || "65 bytes received into 64".into())?;
    }
    same_bytes("beyond the receive", &b.get(AT + 64, 64)?, &[0x5A; 64])
}

fn over_mtu(a: &mut End, b: &mut End) -> Verdict {
    let mtu = a.about().port.active_mtu.bytes();
    b.recv_message(1, AT, mtu + 1)?;
    // Refused immediately, or completed with an error.
    if a.post(a.request(WrOpcode::SEND, 1, b, mtu + 1, 0)).is_ok() {
        let status = a.wait()?.status;
        ensure(!status.is_success(), || format!("{} bytes over an MTU of {mtu}", mtu + 1))?;
    }
    b.expect_quiet()
}

fn exact_fit(a: &mut End, b: &mut End) -> Verdict {
    let mtu = a.about().port.active_mtu.bytes();
    let bytes = pattern(mtu, 1);
    a.put(0, &bytes)?;
    b.recv_message(1, AT, mtu)?;
    a.complete(a.request(WrOpcode::SEND, 1, b, mtu, 0))?;
    b.expect_ok(1)?;
    same_bytes("a message as long as the MTU", &b.get(AT, mtu)?, &bytes)
}

fn receive(b: &mut End, qp: Qp, wr_id: u64) -> Verdict {
    Ok(b.recv_on(qp.handle, wr_id, vec![b.message_sge(AT + wr_id * 128, 64)])?)
}

fn to_many(a: &mut End, b: &mut End) -> Verdict {
    let mut targets = Vec::new();
    for id in 0..4 {
        let qp = b.new_qp(&b.qp_init())?;
        b.bring_up(qp, QpState::Rtr, &a.address(a.qp))?;
        receive(b, qp, id)?;
        targets.push(qp);
    }
    for (id, qp) in (0_u64..).zip(&targets) {
        a.put(0, &id.to_le_bytes())?;
        let target = Target::Datagram { ah: a.ah, qpn: qp.qpn, qkey: QKEY };
        a.complete(SendRequest { target, ..a.request(WrOpcode::SEND, id, b, 8, 0) })?;
        b.expect_at(*qp, id, WcStatus::SUCCESS)?;
        same("the message", b.word(AT + id * 128)?, id)?;
    }
    Ok(())
}

fn from_many(a: &mut End, b: &mut End) -> Verdict {
    for id in 0..4 {
        let qp = a.new_qp(&a.qp_init())?;
        a.bring_up(qp, QpState::Rts, &b.address(b.qp))?;
        receive(b, b.qp, id)?;
        a.send_on(qp, id, b)?;
        a.expect_at(qp, id, WcStatus::SUCCESS)?;
        same("src_qp", b.expect_wc(id)?.src_qp, qp.qpn)?;
    }
    Ok(())
}

fn answer(a: &mut End, b: &mut End) -> Verdict {
    b.recv_message(1, AT, 64)?;
    a.recv_message(2, AT, 64)?;
    a.complete_send(1, b)?;
    let wc = b.expect_wc(1)?;
    let target = Target::Datagram { ah: b.ah, qpn: wc.src_qp, qkey: QKEY };
    b.complete(SendRequest { target, ..b.request(WrOpcode::SEND_WITH_IMM, 3, a, 8, 0) })?;
    let wc = a.expect_wc(2)?;
    same("immediate data", wc.imm(), Some(IMM))?;
    same("src_qp", wc.src_qp, b.qp.qpn)
}

fn not_ready(a: &mut End, b: &mut End) -> Verdict {
    let rtr = half_join(a, b, &Setup::new(QpType::Ud))?;
    b.recv_message(1, AT, 64)?;
    a.complete_send(1, b)?;
    b.expect_quiet()?;
    b.modify(b.qp, rtr)?;
    b.expect_quiet()?;
    deliver(a, b, 2, 1)
}

fn to_connected(a: &mut End, b: &mut End) -> Verdict {
    (a.setup, b.setup) = (Setup::rc(), Setup::rc());
    let (qa, qb) = another_pair(a, b)?;
    receive(b, qb, 1)?;
    let target = Target::Datagram { ah: a.ah, qpn: qb.qpn, qkey: QKEY };
    a.complete(SendRequest { target, ..a.request(WrOpcode::SEND, 1, b, 8, 0) })?;
    b.expect_quiet()?;
    let connected = SendRequest { target: Target::Connection, ..a.request(WrOpcode::SEND, 2, b, 8, 0) };
    a.post_on(qa, vec![connected])?;
    a.expect_at(qa, 2, WcStatus::SUCCESS)?;
    b.expect_at(qb, 1, WcStatus::SUCCESS).map(drop)
}
