//! Datagrams.

use farcall_verbs::{OpCaps, QpState, QpType, WcFlags, WcStatus};

use super::data::GRH_BYTES;
use crate::case::Table;
use crate::finding::{Verdict, ensure, refused, same, same_bytes};
use crate::op::{ALL_OPS, IMM, Op};
use crate::peer::{Peer, connect, join, pattern};
use crate::setup::{QKEY, Setup};
use crate::side::{QpMake, RecvRequest, SendRequest, Target};

const SOURCE: &str = "IBA 9.8.3, 10.2.5; ibv_post_send(3), ibv_create_ah(3)";
const AT: u64 = 4096;

pub(super) fn add(table: &mut Table) {
    let mut case = |name: &str, body: fn(&mut Peer, &mut Peer) -> Verdict| {
        table.add(format!("ud/{name}"), SOURCE, body).needs(QpType::Ud, OpCaps::SEND);
    };
    case("grh/forty-bytes-precede-the-message", grh);
    case("qkey/a-wrong-one-is-dropped-silently", |a, b| {
        join(a, b, &Setup::new(QpType::Ud))?;
        dropped(a, b, |a, b| Target::Datagram { ah: a.ah, qpn: b.qp.qpn, qkey: QKEY + 1 })
    });
    case("qkey/a-controlled-one-stands-for-the-pairs-own", |a, b| {
        join(a, b, &Setup::new(QpType::Ud))?;
        b.recv(1, AT, 64 + GRH_BYTES)?;
        let mut request = Op::Send.request(1, a, b, 8, 0);
        request.target = Target::Datagram { ah: a.ah, qpn: b.qp.qpn, qkey: 0x8000_0000 };
        a.post(request)?;
        a.expect_ok(1)?;
        b.expect_ok(1)?;
        Ok(())
    });
    case("send/to-an-unknown-number-is-dropped-silently", |a, b| {
        join(a, b, &Setup::new(QpType::Ud))?;
        dropped(a, b, |a, b| Target::Datagram { ah: a.ah, qpn: b.qp.qpn ^ 0x0040_0000, qkey: QKEY })
    });
    case("send/without-a-receive-is-dropped-silently", no_receive);
    case("send/longer-than-its-receive-fills-nothing-beyond", too_long);
    case("send/longer-than-the-mtu-is-refused", over_mtu);
    case("send/to-many", to_many);
    case("send/from-many", from_many);
    case("send/a-receiver-knows-the-sender", answer);
    case("send/to-a-pair-that-is-not-ready-is-dropped-silently", not_ready);
    case("send/an-exact-fit", exact_fit);
    for op in ALL_OPS.into_iter().filter(|op| !op.is_of(QpType::Ud)) {
        table
            .add(format!("ud/{}/refused", op.name()), "IBA table 38; ibv_post_send(3)", move |a, b| {
                join(a, b, &Setup::new(QpType::Ud))?;
                refused("posting", a.post(op.request(1, a, b, 8, AT)))?;
                a.expect_quiet()?;
                same("the target's word", b.word(AT)?, 0)
            })
            .needs(QpType::Ud, OpCaps::SEND);
    }
    table
        .add("ud/send/does-not-reach-a-connected-pair", SOURCE, to_connected)
        .needs(QpType::Ud, OpCaps::SEND)
        .needs(QpType::Rc, OpCaps::SEND);
}

fn grh(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::new(QpType::Ud))?;
    let bytes = pattern(100, 1);
    a.put(0, &bytes)?;
    b.put(0, &vec![0x5A; 8192])?;
    b.recv(1, AT, 200)?;
    a.post(Op::Send.request(1, a, b, 100, 0))?;
    a.expect_ok(1)?;
    let wc = b.expect_ok(1)?;
    same("byte_len", wc.byte_len, 100 + GRH_BYTES)?;
    ensure(wc.wc_flags.contains(WcFlags::GRH), || "the completion does not tell of the GRH".into())?;
    same_bytes("the message", &b.get(AT + u64::from(GRH_BYTES), 100)?, &bytes)?;
    same_bytes("before", &b.get(AT - 64, 64)?, &[0x5A; 64])?;
    same_bytes("after", &b.get(AT + 140, 60)?, &[0x5A; 60])
}

/// A datagram that vanishes, and one after it that does not.
fn dropped(a: &mut Peer, b: &mut Peer, target: fn(&Peer, &Peer) -> Target) -> Verdict {
    b.recv(1, AT, 64 + GRH_BYTES)?;
    let request = SendRequest { target: target(a, b), ..Op::Send.request(1, a, b, 8, 0) };
    a.post(request)?;
    a.expect_ok(1)?;
    b.expect_quiet()?;
    a.put(0, &[9; 8])?;
    a.post(Op::Send.request(2, a, b, 8, 0))?;
    a.expect_ok(2)?;
    b.expect_ok(1)?;
    same_bytes("the second message", &b.get(AT + u64::from(GRH_BYTES), 8)?, &[9; 8])?;
    same("state of the target", b.state(b.qp)?, QpState::Rts)
}

fn no_receive(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::new(QpType::Ud))?;
    for id in 0..5 {
        a.post(Op::Send.request(id, a, b, 8, 0))?;
        a.expect_ok(id)?;
    }
    b.expect_quiet()?;
    b.recv(7, AT, 64 + GRH_BYTES)?;
    b.expect_quiet()?;
    a.put(0, &[9; 8])?;
    a.post(Op::Send.request(8, a, b, 8, 0))?;
    a.expect_ok(8)?;
    b.expect_ok(7)?;
    same_bytes("the message", &b.get(AT + u64::from(GRH_BYTES), 8)?, &[9; 8])
}

fn too_long(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::new(QpType::Ud))?;
    b.put(0, &vec![0x5A; 8192])?;
    b.recv(1, AT, 64 + GRH_BYTES)?;
    a.post(Op::Send.request(1, a, b, 65, 0))?;
    a.expect_ok(1)?;
    // Whether it is dropped, or tells the receiver by an error, is left to implementations.
    b.pause();
    if let Some(wc) = b.poll()? {
        ensure(!wc.status.is_success(), || "65 bytes received into 64".into())?;
    }
    same_bytes("beyond the receive", &b.get(AT + 64 + u64::from(GRH_BYTES), 64)?, &[0x5A; 64])
}

fn over_mtu(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::new(QpType::Ud))?;
    let mtu = crate::side::mtu_from(a.about().active_mtu).bytes();
    b.recv(1, AT, mtu + GRH_BYTES + 1)?;
    match a.post(Op::Send.request(1, a, b, mtu + 1, 0)) {
        // Refused at once, or ended in an error.
        Err(_) => {}
        Ok(()) => {
            let status = a.wait()?.status;
            ensure(!status.is_success(), || format!("{} bytes over an MTU of {mtu}", mtu + 1))?;
        }
    }
    b.expect_quiet()
}

fn exact_fit(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::new(QpType::Ud))?;
    let mtu = crate::side::mtu_from(a.about().active_mtu).bytes();
    let bytes = pattern(mtu, 1);
    a.put(0, &bytes)?;
    b.recv(1, AT, mtu + GRH_BYTES)?;
    a.post(Op::Send.request(1, a, b, mtu, 0))?;
    a.expect_ok(1)?;
    b.expect_ok(1)?;
    same_bytes("a message as long as the MTU", &b.get(AT + u64::from(GRH_BYTES), mtu)?, &bytes)
}

fn receive(b: &Peer, wr_id: u64) -> RecvRequest {
    RecvRequest { wr_id, pieces: vec![b.piece(AT + wr_id * 128, 64 + GRH_BYTES)] }
}

fn to_many(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = Setup::new(QpType::Ud);
    join(a, b, &setup)?;
    let mut targets = Vec::new();
    for id in 0..4 {
        let qp = b.new_qp(&b.qp_make(&setup))?;
        let to_a = a.address(a.qp);
        b.modify(qp, b.init_attr(&setup))?;
        b.modify(qp, b.rtr_attr(&setup, &to_a))?;
        b.recv_on(qp.handle, vec![receive(b, id)])?;
        targets.push(qp);
    }
    for (id, qp) in (0_u64..).zip(&targets) {
        a.put(0, &id.to_le_bytes())?;
        let target = Target::Datagram { ah: a.ah, qpn: qp.qpn, qkey: QKEY };
        a.post(SendRequest { target, ..Op::Send.request(id, a, b, 8, 0) })?;
        a.expect_ok(id)?;
        let wc = b.wait()?;
        same("wr_id, qp_num", (wc.wr_id, wc.qp_num), (id, qp.qpn))?;
        same("the message", b.word(AT + id * 128 + u64::from(GRH_BYTES))?, id)?;
    }
    Ok(())
}

fn from_many(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = Setup::new(QpType::Ud);
    join(a, b, &setup)?;
    for id in 0..4 {
        let qp = a.new_qp(&QpMake { ..a.qp_make(&setup) })?;
        let to_b = b.address(b.qp);
        a.modify(qp, a.init_attr(&setup))?;
        a.modify(qp, a.rtr_attr(&setup, &to_b))?;
        a.modify(qp, a.rts_attr(&setup))?;
        b.recv_on(b.qp.handle, vec![receive(b, id)])?;
        a.post_on(qp, vec![Op::Send.request(id, a, b, 8, 0)])?;
        same("status at the sender", a.wait()?.status, WcStatus::SUCCESS)?;
        let wc = b.expect_ok(id)?;
        same("src_qp", wc.src_qp, qp.qpn)?;
    }
    Ok(())
}

fn answer(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::new(QpType::Ud))?;
    b.recv(1, AT, 64 + GRH_BYTES)?;
    a.recv(2, AT, 64 + GRH_BYTES)?;
    a.post(Op::Send.request(1, a, b, 8, 0))?;
    a.expect_ok(1)?;
    let wc = b.expect_ok(1)?;
    let target = Target::Datagram { ah: b.ah, qpn: wc.src_qp, qkey: QKEY };
    let mut request = SendRequest { target, ..Op::Send.request(3, b, a, 8, 0) };
    request.opcode = Op::SendImm.opcode().0;
    request.imm = IMM;
    b.post(request)?;
    b.expect_ok(3)?;
    let wc = a.expect_ok(2)?;
    same("immediate data", wc.imm(), Some(IMM))?;
    same("src_qp", wc.src_qp, b.qp.qpn)
}

fn not_ready(a: &mut Peer, b: &mut Peer) -> Verdict {
    let setup = Setup::new(QpType::Ud);
    a.equip(&setup)?;
    b.equip(&setup)?;
    let to_b = b.address(b.qp);
    let to_a = a.address(a.qp);
    b.modify(b.qp, b.init_attr(&setup))?;
    b.recv(1, AT, 64 + GRH_BYTES)?;
    a.modify(a.qp, a.init_attr(&setup))?;
    a.modify(a.qp, a.rtr_attr(&setup, &to_b))?;
    a.modify(a.qp, a.rts_attr(&setup))?;
    a.ah = a.new_ah(&to_b)?;
    a.post(Op::Send.request(1, a, b, 8, 0))?;
    a.expect_ok(1)?;
    b.expect_quiet()?;
    b.modify(b.qp, b.rtr_attr(&setup, &to_a))?;
    b.expect_quiet()?;
    a.post(Op::Send.request(2, a, b, 8, 0))?;
    a.expect_ok(2)?;
    b.expect_ok(1)?;
    Ok(())
}

fn to_connected(a: &mut Peer, b: &mut Peer) -> Verdict {
    join(a, b, &Setup::new(QpType::Ud))?;
    let setup = Setup::rc();
    let (qa, qb) = (a.new_qp(&a.qp_make(&setup))?, b.new_qp(&b.qp_make(&setup))?);
    connect(a, qa, b, qb, &setup)?;
    b.recv_on(qb.handle, vec![receive(b, 1)])?;
    let target = Target::Datagram { ah: a.ah, qpn: qb.qpn, qkey: QKEY };
    a.post(SendRequest { target, ..Op::Send.request(1, a, b, 8, 0) })?;
    a.expect_ok(1)?;
    b.expect_quiet()?;
    let connected = SendRequest { target: Target::Peer, ..Op::Send.request(2, a, b, 8, 0) };
    a.post_on(qa, vec![connected])?;
    same("the connected pair's message", a.wait()?.status, WcStatus::SUCCESS)?;
    same("its receive", b.wait()?.wr_id, 1)
}
