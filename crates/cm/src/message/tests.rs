use proptest::prelude::*;

use super::*;
use crate::{MESSAGE_BYTES_MAX, reason};

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
        bytes[4] = 2;
        bytes.extend([1, 2, 3]);
        assert_eq!(Message::decode(&bytes), Ok(message));
    }
}

#[test]
fn what_this_build_does_not_understand_is_refused_by_name() {
    let mut bytes = Message::Rtu.encode();
    bytes[5] = 2;
    assert_eq!(Message::decode(&bytes), Err(Malformed::TooNew(2)));
    assert!(Malformed::TooNew(2).to_string().contains("one build at both ends"));
    bytes[5] = 1;
    bytes[6] = 99;
    assert_eq!(Message::decode(&bytes), Err(Malformed::Kind(99)));
    assert_eq!(Message::decode(b"GET / HTTP/1.1\r\n"), Err(Malformed::Foreign));
}

#[test]
fn fields_have_their_range() {
    let Message::Req(request) = examples().remove(0) else { unreachable!("the first is a REQ") };
    let encoded = Message::Req(request).encode();
    // The private data's length is the byte before it.
    let len_at = encoded.len() - REQ_BYTES_MAX - 1;
    let changes = [(len_at, 57), (8, 0xff), (10, 5), (8 + 2 + 46 + 3, 1), (8 + 2 + 46 + 24 + 1, 6)];
    for (at, value) in changes {
        let mut bytes = encoded.clone();
        bytes.push(0);
        bytes[at] = value;
        assert!(matches!(Message::decode(&bytes), Err(Malformed::OutOfRange(_))), "byte {at} = {value}");
    }
}

proptest! {
    #[test]
    fn what_decodes_means_the_same_when_it_is_sent_on(bytes in proptest::collection::vec(any::<u8>(), 0..600), kind in 0..10_u8) {
        let mut message = b"FCCM\x01\x01".to_vec();
        message.extend([kind, 0]);
        message.extend(bytes);
        if let Ok(decoded) = Message::decode(&message) {
            let again = decoded.encode();
            prop_assert!(again.len() <= MESSAGE_BYTES_MAX);
            prop_assert_eq!(Message::decode(&again), Ok(decoded));
        }
    }
}
