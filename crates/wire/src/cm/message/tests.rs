use proptest::prelude::*;

use super::*;
use crate::cm::{MESSAGE_BYTES_MAX, reason};

fn qp() -> QueuePair {
    QueuePair { qp_num: 0xff_fffe, psn: 0x12_3456, gid: [7; 16] }
}

fn terms() -> Terms {
    Terms { responder_resources: 16, initiator_depth: 255, flow_control: true, rnr_retry_count: 7, srq: true }
}

/// One of each kind, with as much private data as it may have.
fn examples() -> Vec<Message> {
    let (from, to) = ("[fe80::1%3]:40000".parse().unwrap(), "192.0.2.7:7174".parse().unwrap());
    vec![
        Message::Req(Request {
            port_space: PortSpace::Tcp,
            from,
            to,
            qp: qp(),
            qp_type: 2,
            mtu: 5,
            retry_count: 7,
            ack_timeout: 18,
            terms: terms(),
            ece: Ece { vendor_id: 1, options: 2 },
            private_data: vec![1; REQ_BYTES_MAX],
        }),
        Message::Rep(Reply {
            qp: qp(),
            terms: Terms::default(),
            ece: Ece::default(),
            private_data: vec![2; REP_BYTES_MAX],
        }),
        Message::Rtu,
        Message::Rej(Rejection { reason: reason::CONSUMER_DEFINED, private_data: vec![3; REJ_BYTES_MAX] }),
        Message::Dreq,
        Message::Drep,
        Message::SidrReq(ServiceRequest {
            port_space: PortSpace::Udp,
            from: to,
            to: from,
            private_data: vec![4; SIDR_REQ_BYTES_MAX],
        }),
        Message::SidrRep(ServiceReply {
            status: reason::SIDR_SUCCESS,
            qp_num: 77,
            qkey: 0x0123_4567,
            gid: [9; 16],
            private_data: vec![5; SIDR_REP_BYTES_MAX],
        }),
    ]
}

#[test]
fn every_message_comes_back_and_fits_a_packet() {
    for message in examples() {
        let bytes = message.encode();
        assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{message:?}");
        assert_eq!(Message::decode(&bytes), Ok(message));
    }
}

#[test]
fn a_message_that_ends_early_is_none_and_one_that_goes_on_is_of_a_later_version() {
    for message in examples() {
        let mut bytes = message.encode();
        for end in 0..bytes.len() {
            assert_eq!(Message::decode(&bytes[..end]), Err(Malformed::Short), "{end} bytes of {message:?}");
        }
        bytes[4] = VERSION + 1;
        bytes.extend([1, 2, 3]);
        assert_eq!(Message::decode(&bytes), Ok(message));
    }
}

#[test]
fn what_this_build_does_not_understand_is_refused_by_name() {
    let rtu = Message::Rtu.encode();
    for (version, oldest, needed) in [(VERSION + 1, VERSION + 1, VERSION + 1), (1, 1, 1)] {
        let mut bytes = rtu.clone();
        (bytes[4], bytes[5]) = (version, oldest);
        assert_eq!(Message::decode(&bytes), Err(Malformed::Version(needed)));
    }
    assert!(Malformed::Version(1).to_string().contains("one build at both ends"));
    let mut bytes = rtu;
    bytes[8] = 99;
    assert_eq!(Message::decode(&bytes), Err(Malformed::Kind(99)));
    assert_eq!(Message::decode(b"GET / HTTP/1.1\r\n"), Err(Malformed::Foreign));
}

/// The message as a program would have to write it that does not keep to the ranges.
fn encode_as_it_is(message: &Message) -> Vec<u8> {
    postcard::to_extend(message, Message::Rtu.encode()[..8].to_vec()).unwrap()
}

#[test]
fn fields_have_their_range() {
    let Message::Req(request) = examples().remove(0) else { unreachable!("the first is a REQ") };
    let changes: [fn(&mut Request); 8] = [
        |request| request.private_data.push(0),
        |request| request.qp.qp_num = 1 << 24,
        |request| request.qp.psn = 1 << 24,
        |request| request.mtu = 0,
        |request| request.mtu = 6,
        |request| request.retry_count = 8,
        |request| request.ack_timeout = 32,
        |request| request.terms.rnr_retry_count = 8,
    ];
    for change in changes {
        let mut changed = request.clone();
        change(&mut changed);
        let message = Message::Req(changed);
        let refused = Message::decode(&encode_as_it_is(&message));
        assert!(matches!(refused, Err(Malformed::OutOfRange(_))), "{message:?}");
        assert!(Message::decode(&message.encode()).is_ok(), "cut: {message:?}");
    }
    // The port space stands first, as a number of four.
    let mut bytes = Message::Req(request).encode();
    bytes[9] = 4;
    assert_eq!(Message::decode(&bytes), Err(Malformed::OutOfRange("a field")));
}

proptest! {
    #[test]
    fn what_decodes_means_the_same_when_it_is_sent_on(bytes in proptest::collection::vec(any::<u8>(), 0..600), kind in 0..10_u8) {
        let mut message = Message::Rtu.encode();
        message[8] = kind;
        message.extend(bytes);
        if let Ok(decoded) = Message::decode(&message) {
            let again = decoded.encode();
            prop_assert!(again.len() <= MESSAGE_BYTES_MAX);
            prop_assert_eq!(Message::decode(&again), Ok(decoded));
        }
    }
}
