use proptest::prelude::*;

use super::*;
use crate::cm::message::{
    ConnectionParams, Ece, IpRoute, PortSpace, QueuePair, RejectedMessage, Rejection, Reply, Request,
    ServiceReply, ServiceRequest,
};
use crate::cm::private_data::{
    REJ_BYTES_MAX, REP_BYTES_MAX, REQ_BYTES_MAX, SIDR_REP_BYTES_MAX, SIDR_REQ_BYTES_MAX,
};
use crate::cm::reason;

fn params() -> ConnectionParams {
    ConnectionParams {
        responder_resources: 16,
        initiator_depth: 255,
        flow_control: true,
        rnr_retry_count: 6,
        srq: true,
    }
}

fn route(from: &str, to: &str) -> IpRoute {
    IpRoute { port_space: PortSpace::Udp, from: from.parse().unwrap(), to: to.parse().unwrap() }
}

fn request() -> Request {
    Request {
        route: IpRoute { port_space: PortSpace::Tcp, ..route("[fe80::1]:40000", "[2001:db8::7]:7174") },
        qp: QueuePair { qp_num: 0xff_fffe, psn: 0x12_3456 },
        ca_guid: 0x0102_0304_0506_0708,
        gid: [7; 16],
        peer_gid: [8; 16],
        qp_type: 3,
        mtu: 5,
        retry_count: 5,
        ack_timeout: 18,
        params: params(),
        ece: Ece { vendor_id: 0x01_0203, options: 0x0405_0607 },
        private_data: vec![1; REQ_BYTES_MAX],
    }
}

/// Returns one message of each type, with the maximum amount of private data.
fn messages() -> Vec<Message> {
    vec![
        Message::Req(request()),
        Message::Rep(Reply {
            qp: QueuePair { qp_num: 0x0a_0b0c, psn: 0x0d_0e0f },
            ca_guid: u64::MAX,
            params: params(),
            ece: Ece { vendor_id: 0xf1_f2f3, options: 9 },
            private_data: vec![2; REP_BYTES_MAX],
        }),
        Message::Rtu,
        Message::Rej(Rejection {
            rejected: RejectedMessage::Rep,
            reason: reason::CONSUMER_DEFINED,
            private_data: vec![3; REJ_BYTES_MAX],
        }),
        Message::Dreq { remote_qp_num: 0xab_cdef },
        Message::Drep,
        Message::Mra { received: RejectedMessage::Other, service_timeout: 21 },
        Message::SidrReq(ServiceRequest {
            route: route("192.0.2.7:40000", "192.0.2.8:7174"),
            private_data: vec![4; SIDR_REQ_BYTES_MAX],
        }),
        Message::SidrRep(ServiceReply {
            status: reason::SIDR_SUCCESS,
            qp_num: 77,
            service_id: 0x0111_1c06,
            qkey: 0x0123_4567,
            private_data: vec![5; SIDR_REP_BYTES_MAX],
        }),
    ]
}

/// Returns a message with the identifiers that its type carries.
fn with_ids(message: Message) -> Mad {
    let (local_comm_id, remote_comm_id) = match message {
        Message::Req(_) | Message::SidrReq(_) => (0x1122_3344, 0),
        Message::SidrRep(_) => (0, 0x5566_7788),
        _ => (0x1122_3344, 0x5566_7788),
    };
    Mad { transaction_id: 0x0102_0304_0506_0708, local_comm_id, remote_comm_id, message }
}

fn encoded(message: Message) -> [u8; MESSAGE_BYTES] {
    with_ids(message).encode()
}

/// Returns the bytes given as hexadecimal digits separated by blanks.
fn bytes_of(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.split_whitespace().flat_map(str::bytes).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// The REQ of `ucmatose -s 10.88.0.1` on Linux 6.1 with rdma_rxe, as captured on the wire.
const REQ_OF_LINUX: &str = "
    01070203 00000000 00000004 44e899bc 00100000 00000000 bc99e844 00000000
    00000000 01061d2f 505400ff fe123456 00000000 00000000 00001101 00000001
    000000a0 dc193da5 ffff30f0 ffffffff 00000000 00000000 0000ffff 0a580002
    00000000 00000000 0000ffff 0a580001 0c124000 00400098 00000000 00000000
    00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
    00000000 0040896b 00000000 00000000 00000000 0a580002 00000000 00000000
    00000000 0a580001 00000000 00000000 00000000 00000000 00000000 00000000
    00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000";

#[test]
fn the_req_of_linux_is_understood_and_written_alike() {
    let theirs = bytes_of(REQ_OF_LINUX);
    let mad = Mad::decode(&theirs).unwrap();
    let Message::Req(request) = &mad.message else { panic!("{mad:?}") };
    assert_eq!((mad.local_comm_id, mad.transaction_id), (0xbc99_e844, 0x0000_0004_44e8_99bc));
    let gid = |ip: [u8; 4]| std::net::Ipv4Addr::from(ip).to_ipv6_mapped().octets();
    let expected = Request {
        route: IpRoute {
            port_space: PortSpace::Tcp,
            from: "10.88.0.2:35179".parse().unwrap(),
            to: "10.88.0.1:7471".parse().unwrap(),
        },
        qp: QueuePair { qp_num: 17, psn: 0xdc_193d },
        ca_guid: 0x5054_00ff_fe12_3456,
        gid: gid([10, 88, 0, 2]),
        peer_gid: gid([10, 88, 0, 1]),
        qp_type: 2,
        mtu: 3,
        retry_count: 5,
        ack_timeout: 19,
        params: ConnectionParams {
            responder_resources: 1,
            initiator_depth: 1,
            ..ConnectionParams::default()
        },
        ece: Ece::default(),
        private_data: vec![0; REQ_BYTES_MAX],
    };
    assert_eq!(*request, expected);
    // Linux also sets LIDs and the flow label, which receivers ignore.
    let mut silent = theirs;
    silent[24 + 52..24 + 56].fill(0);
    silent[24 + 88..24 + 91].fill(0);
    assert_eq!(mad.encode().as_slice(), silent);
}

/// Offsets of the fields that are zero in the REQ above, according to the tables of section 12.6 and Linux's
/// `ibta_vol1_c12.h`.
#[test]
fn fields_are_where_the_specification_has_them() {
    let at = |bytes: [u8; MESSAGE_BYTES], at: usize, len: usize| {
        bytes[24 + at..24 + at + len].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let [req, rep, rtu, rej, dreq, drep, mra, sidr_req, sidr_rep] =
        <[Message; 9]>::try_from(messages()).unwrap().map(encoded);
    for (bytes, attribute) in [
        (req, 0x10),
        (mra, 0x11),
        (rej, 0x12),
        (rep, 0x13),
        (rtu, 0x14),
        (dreq, 0x15),
        (drep, 0x16),
        (sidr_req, 0x17),
        (sidr_rep, 0x18),
    ] {
        assert_eq!(bytes[..4], [1, 7, 2, 3]);
        assert_eq!(bytes[8..18], [&[1, 2, 3, 4, 5, 6, 7, 8, 0][..], &[attribute]].concat());
    }
    assert_eq!((req[20..24].to_vec(), at(req, 4, 4)), (vec![4, 5, 6, 7], 0x01_0203));
    // Transport service type 1, flow control; MTU 5, RNR retries 6; 15 retries, SRQ.
    assert_eq!((at(req, 43, 1), at(req, 50, 1), at(req, 51, 1)), (0xa3, 0x56, 0xf8));
    assert_eq!((at(req, 140, 2), at(req, 142, 2)), (0x0060, 40_000));
    assert_eq!((at(req, 144, 2), at(req, 160, 2), at(req, 176, 1)), (0xfe80, 0x2001, 1));
    assert_eq!((at(rep, 0, 4), at(rep, 4, 4), at(rep, 12, 4)), (0x1122_3344, 0x5566_7788, 0x0a0b_0cf1));
    assert_eq!((at(rep, 16, 4), at(rep, 20, 4)), (0xf2, 0x0d0e_0ff3));
    assert_eq!((at(rep, 24, 4), at(rep, 28, 8), at(rep, 36, 1)), (0x10ff_01d0, u64::MAX, 2));
    assert_eq!((at(rej, 8, 1), at(rej, 10, 2), at(rej, 84, 1)), (0x40, 28, 3));
    assert_eq!((at(dreq, 8, 4), at(mra, 8, 2)), (0xabcd_ef00, 0x80a8));
    assert_eq!((at(sidr_req, 0, 8), at(sidr_req, 8, 8)), (0x1122_3344_ffff_0000, 0x0111_1c06));
    assert_eq!((at(sidr_req, 16, 4), at(sidr_req, 32, 4)), (0x0040_9c40, 0xc000_0207));
    assert_eq!((at(sidr_req, 48, 4), at(sidr_req, 52, 1)), (0xc000_0208, 4));
    assert_eq!((at(sidr_rep, 0, 4), at(sidr_rep, 4, 1)), (0x5566_7788, 0));
    assert_eq!((at(sidr_rep, 8, 4), at(sidr_rep, 12, 8)), (77 << 8, 0x0111_1c06));
    assert_eq!((at(sidr_rep, 20, 4), at(sidr_rep, 96, 1)), (0x0123_4567, 5));
}

#[test]
fn every_message_comes_back() {
    for message in messages() {
        let mad = with_ids(message);
        assert_eq!(Mad::decode(&mad.encode()), Ok(mad));
    }
}

/// Private data ends with zeros, the scope of an address is not transmitted, and addresses of different families are
/// written as IPv6.
#[test]
fn clamps_values_that_exceed_their_field() {
    let mut short = request();
    short.private_data = vec![7];
    short.route = IpRoute { port_space: PortSpace::Tcp, ..route("[fe80::1%3]:1", "192.0.2.7:2") };
    let Ok(Mad { message: Message::Req(got), .. }) = Mad::decode(&encoded(Message::Req(short))) else {
        panic!("no REQ")
    };
    assert_eq!(got.private_data, [&[7][..], &[0; REQ_BYTES_MAX - 1]].concat());
    let expected = route("[fe80::1]:1", "[::ffff:192.0.2.7]:2");
    assert_eq!(got.route, IpRoute { port_space: PortSpace::Tcp, ..expected });
}

#[test]
fn rejects_unknown_messages_by_name() {
    let rtu = encoded(Message::Rtu);
    let changed = |at: usize, byte: u8| {
        let mut bytes = rtu;
        bytes[at] = byte;
        Mad::decode(&bytes).unwrap_err()
    };
    assert_eq!(changed(0, 2), Malformed::Version { base: 2, class: 2 });
    assert_eq!(changed(2, 3), Malformed::Version { base: 1, class: 3 });
    assert_eq!((changed(1, 3), changed(3, 1)), (Malformed::OtherClass, Malformed::OtherClass));
    // LAP: paths cannot be changed here.
    assert_eq!(changed(17, 0x19), Malformed::Kind(0x19));
    for len in [0, 24, 255] {
        assert_eq!(Mad::decode(&rtu[..len]), Err(Malformed::Length(len)));
    }
    assert_eq!(Mad::decode(&[&rtu[..], &[0]].concat()), Err(Malformed::Length(257)));
    let mut req = encoded(Message::Req(request()));
    req[24 + 12..24 + 14].fill(9);
    assert_eq!(Mad::decode(&req), Err(Malformed::Service(0x0909_1c06)));
}

#[test]
fn fields_have_their_range() {
    let changes: [fn(&mut Request); 9] = [
        |request| request.private_data.push(0),
        |request| request.qp.qp_num = 1 << 24,
        |request| request.qp.psn = 1 << 24,
        |request| request.mtu = 0,
        |request| request.mtu = 6,
        |request| request.retry_count = 8,
        |request| request.ack_timeout = 32,
        |request| request.params.rnr_retry_count = 8,
        |request| request.ece.vendor_id = 1 << 24,
    ];
    for change in changes {
        let mut changed = request();
        change(&mut changed);
        let message = Message::Req(changed);
        assert!(message.clone().clamp().is_some(), "{message:?}");
        assert!(Mad::decode(&encoded(message.clone())).is_ok(), "cut: {message:?}");
    }
    // The MTU, reliable datagrams, an unknown version and form of addresses; a fourth message to be rejected.
    let req = encoded(Message::Req(request()));
    for (at, byte) in [(50, 0x60), (50, 0), (43, 4), (140, 1), (141, 0x50)] {
        let mut bytes = req;
        bytes[24 + at] = byte;
        assert!(matches!(Mad::decode(&bytes), Err(Malformed::OutOfRange(_))), "{byte:#x} at {at}");
    }
    let mut rej = encoded(messages().remove(3));
    rej[24 + 8] = 0xc0;
    assert!(matches!(Mad::decode(&rej), Err(Malformed::OutOfRange(_))));
}

proptest! {
    #[test]
    fn re_encodes_a_decoded_message_unchanged(
        body in proptest::collection::vec(any::<u8>(), BODY_BYTES),
        kind in 0x0f..0x1a_u8,
        is_ip in any::<bool>(),
    ) {
        let mut bytes = encoded(Message::Rtu);
        bytes[17] = kind;
        bytes[HEADER_BYTES..].copy_from_slice(&body);
        if is_ip {
            // Random bytes rarely contain a port of a port space and addresses.
            bytes[24 + 8..24 + 14].copy_from_slice(&[0, 0, 0, 0, 1, 6]);
            for at in [16, 140] {
                bytes[24 + at..24 + at + 2].copy_from_slice(&[0, if body[0] % 2 == 0 { 0x40 } else { 0x60 }]);
            }
        }
        if let Ok(decoded) = Mad::decode(&bytes) {
            prop_assert_eq!(Mad::decode(&decoded.encode()), Ok(decoded));
        }
    }
}
