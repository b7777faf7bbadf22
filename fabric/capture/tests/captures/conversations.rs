//! Tests of requests recorded as packets.

use std::path::PathBuf;

use farcall_capture::{Conversation, Ends, QpEnd, Recorder, Request, SNAPLEN_BYTES, merge};
use farcall_verbs::{
    Access, AhAttr, AtomicTarget, Gid, Mtu, QpAttr, QpState, QpType, SendFlags, SendWr, Sge, UdTarget, Wc,
    WcOpcode, WcStatus, WrOpcode,
};
use farcall_wire::{AccessDenied, AtomicOp, Nak, Operation, Segment, Syndrome};

use crate::support::{Capture, Received, check, read};

const QPN: u32 = 0x1234;
const PEER_QPN: u32 = 0x5678;
/// PSNs wrap after the second packet.
const FIRST_PSN: u32 = 0xFF_FFFE;

/// A queue pair whose payload is derived from the first address of a gather list.
struct End2End {
    folder: PathBuf,
    recorder: Recorder,
    conversation: Conversation,
}

fn payload(len_bytes: u64) -> Vec<u8> {
    (0..len_bytes).map(|at| at as u8 ^ 0x5A).collect()
}

fn read_payload(sges: &[Sge], offset: u64, len_bytes: u64, to: &mut Vec<u8>) -> Result<(), AccessDenied> {
    let whole = payload(sges.iter().map(|sge| u64::from(sge.length)).sum());
    to.extend(&whole[offset as usize..(offset + len_bytes) as usize]);
    Ok(())
}

fn sge(length: u32) -> [Sge; 1] {
    [Sge { addr: 0x1000, length, lkey: 7 }]
}

fn ended(wr_id: u64, status: WcStatus) -> Wc {
    Wc::ended(wr_id, QPN, WcOpcode::SEND, status)
}

impl End2End {
    fn new(name: &str, transport: QpType) -> Self {
        Self::cut(name, transport, SNAPLEN_BYTES)
    }

    fn cut(name: &str, transport: QpType, snaplen_bytes: u32) -> Self {
        let folder =
            std::env::temp_dir().join(format!("farcall-conversations-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let recorder = Recorder::create(&folder, snaplen_bytes).unwrap();
        let mut conversation = Conversation::new(transport, QPN, 16);
        let path = AhAttr { dgid: Gid::from_ipv4([10, 0, 0, 2].into()), ..AhAttr::default() };
        let own = Some(Gid::from_ipv4([10, 0, 0, 1].into()));
        conversation.modify(&QpAttr::init(Access::empty()), None);
        conversation.modify(&QpAttr::rtr(PEER_QPN, 0, path, Mtu::Mtu1024), own);
        conversation.modify(&QpAttr::rts(FIRST_PSN), None);
        Self { folder, recorder, conversation }
    }

    fn post(&mut self, wr: &SendWr<'_>) {
        let is_signalled = wr.send_flags.contains(SendFlags::SIGNALED);
        let request = Request { wr, is_signalled, ends: None };
        self.conversation.posted(&mut self.recorder.batch(), &request, read_payload);
    }

    fn complete(&mut self, wr_id: u64, status: WcStatus) {
        self.conversation.completed(&mut self.recorder.batch(), &ended(wr_id, status), read_payload);
    }

    fn capture(&self) -> Capture {
        let files: Vec<_> =
            std::fs::read_dir(&self.folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        let whole = std::env::temp_dir().join(format!("{}.pcapng", self.folder.display()));
        let merged = merge(&files, "test", &mut std::fs::File::create(&whole).unwrap()).unwrap();
        let capture = read(&whole);
        assert_eq!((merged.processes, merged.packets), (1, capture.frames.len() as u64));
        assert_eq!(capture.interfaces[0].received, merged.packets);
        std::fs::remove_file(&whole).unwrap();
        capture
    }

    /// Returns the recorded packets after checking them, and whether the local side sent each.
    fn packets(&self) -> Vec<(bool, Received)> {
        self.capture().frames.iter().map(|frame| (frame.is_out, check(frame))).collect()
    }

    /// Returns direction, opcode and PSN of each packet.
    fn summary(&self) -> Vec<(bool, u8, u32)> {
        let short = |(is_out, received): &(bool, Received)| {
            (*is_out, received.packet.opcode(), received.packet.psn.number())
        };
        self.packets().iter().map(short).collect()
    }
}

impl Drop for End2End {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

#[test]
fn segments_messages_at_the_path_mtu_and_acknowledges_them() {
    let mut end = End2End::new("mtu", QpType::Rc);
    end.post(&SendWr::send(1, &sge(2500)).with_flags(SendFlags::SIGNALED | SendFlags::SOLICITED));
    end.post(&SendWr::write(2, &sge(0), 0, 0).with_imm(5).with_flags(SendFlags::SIGNALED));
    end.complete(1, WcStatus::SUCCESS);
    end.complete(2, WcStatus::SUCCESS);
    let packets = end.packets();
    assert_eq!(
        end.summary(),
        [
            (true, 0x00, 0xFF_FFFE),
            (true, 0x01, 0xFF_FFFF),
            (true, 0x02, 0),
            (true, 0x0b, 1),
            (false, 0x11, 0),
            (false, 0x11, 1)
        ]
    );
    let data: Vec<u8> = packets[..3].iter().flat_map(|(_, received)| received.payload.clone()).collect();
    assert_eq!(data, payload(2500));
    let marks = |at: usize| (packets[at].1.packet.ack_req, packets[at].1.packet.solicited);
    assert_eq!([marks(0), marks(1), marks(2)], [(false, false), (false, false), (true, true)]);
    for (is_out, received) in &packets {
        let [ours, theirs]: [std::net::IpAddr; 2] = [[10, 0, 0, 1].into(), [10, 0, 0, 2].into()];
        let ends = (received.src, received.dst, received.packet.dest_qpn);
        assert_eq!(ends, if *is_out { (ours, theirs, PEER_QPN) } else { (theirs, ours, QPN) });
        assert_eq!(received.ports[1], 4791);
    }
    let Operation::Acknowledge(aeth) = packets[5].1.packet.operation else { panic!("{:?}", packets[5]) };
    assert_eq!((aeth.syndrome, aeth.msn), (Syndrome::Ack, 2));
}

#[test]
fn a_read_is_answered_with_data_in_the_numbers_that_it_used_up() {
    let mut end = End2End::new("read", QpType::Rc);
    end.post(&SendWr::read(1, &sge(2049), 0xABCD, 9).with_flags(SendFlags::SIGNALED));
    end.post(&SendWr::send(2, &sge(4)));
    end.complete(1, WcStatus::SUCCESS);
    assert_eq!(
        end.summary(),
        [
            (true, 0x0c, 0xFF_FFFE),
            (true, 0x04, 1),
            (false, 0x0d, 0xFF_FFFE),
            (false, 0x0e, 0xFF_FFFF),
            (false, 0x0f, 0)
        ]
    );
    let packets = end.packets();
    let Operation::ReadRequest(reth) = packets[0].1.packet.operation else { panic!("{:?}", packets[0]) };
    assert_eq!((reth.addr, reth.rkey, reth.len_bytes), (0xABCD, 9, 2049));
    let data: Vec<u8> = packets[2..].iter().flat_map(|(_, received)| received.payload.clone()).collect();
    assert_eq!(data, payload(2049));
    assert!(matches!(packets[3].1.packet.operation, Operation::ReadResponse(Segment::Middle, None)));
}

#[test]
fn acknowledges_earlier_requests_by_an_ack_or_a_response() {
    let mut end = End2End::new("coalesced", QpType::Rc);
    for wr_id in 1..4 {
        end.post(&SendWr::send(wr_id, &sge(4)));
    }
    let atomic = AtomicTarget { remote_addr: 8, compare_add: 3, swap: 0, rkey: 1 };
    end.post(&SendWr::atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, 4, &sge(8), atomic));
    end.post(&SendWr::write(5, &sge(1), 0, 1));
    end.post(&SendWr::write(6, &sge(1), 0, 1).with_flags(SendFlags::SIGNALED));
    end.complete(6, WcStatus::SUCCESS);
    let answers: Vec<_> = end.summary().into_iter().filter(|(is_out, ..)| !is_out).collect();
    assert_eq!(answers, [(false, 0x12, 1), (false, 0x11, 3)]);
    let packets = end.packets();
    let Operation::AtomicRequest(request) = packets[3].1.packet.operation else { panic!("{:?}", packets[3]) };
    assert_eq!((request.addr, request.rkey, request.op), (8, 1, AtomicOp::FetchAdd { add: 3 }));
    let Operation::AtomicAcknowledge(_, found) = packets[6].1.packet.operation else {
        panic!("{:?}", packets[6])
    };
    assert_eq!(found.to_ne_bytes(), *payload(8));
}

#[test]
fn captures_naks_by_error_and_no_packet_for_a_timeout() {
    let mut end = End2End::new("refused", QpType::Rc);
    let refusals = [
        (WcStatus::REM_INV_REQ_ERR, Some(Nak::InvalidRequest)),
        (WcStatus::REM_ACCESS_ERR, Some(Nak::RemoteAccess)),
        (WcStatus::REM_OP_ERR, Some(Nak::RemoteOperation)),
        (WcStatus::RETRY_EXC_ERR, None),
        (WcStatus::WR_FLUSH_ERR, None),
    ];
    let mut seen = Vec::new();
    for (wr_id, (status, nak)) in (1..).zip(refusals) {
        // Not signalled: failures generate a completion anyway.
        end.post(&SendWr::send(wr_id, &sge(4)));
        end.complete(wr_id, status);
        seen.extend(nak);
    }
    let told: Vec<Nak> = end
        .packets()
        .iter()
        .filter_map(|(_, received)| match received.packet.operation {
            Operation::Acknowledge(aeth) => Some(aeth.syndrome),
            _ => None,
        })
        .map(|syndrome| match syndrome {
            Syndrome::Nak(nak) => nak,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, seen);
}

#[test]
fn records_no_packet_for_an_invalid_request() {
    let mut end = End2End::new("rules", QpType::Rc);
    let sges = sge(4);
    let wr = SendWr::send(1, &sges).with_flags(SendFlags::SIGNALED);
    let request = Request { wr: &wr, is_signalled: true, ends: None };
    end.conversation
        .posted(&mut end.recorder.batch(), &request, |_: &[Sge], _, _, _: &mut Vec<u8>| Err(AccessDenied));
    end.complete(1, WcStatus::LOC_PROT_ERR);
    end.post(&SendWr::send(2, &sges));
    assert_eq!(end.summary(), [(true, 0x04, FIRST_PSN)]);
    // Reset discards all state.
    end.conversation.modify(&QpAttr::to(QpState::Reset), None);
    assert!(!end.conversation.awaits_responses());
}

#[test]
fn captures_datagrams_with_addresses_and_without_replies() {
    let mut end = End2End::new("datagram", QpType::Ud);
    end.conversation.modify(&QpAttr::init_datagrams(0x77), None);
    let sges = sge(6);
    let dst = QpEnd { gid: Gid([0xFD; 16]), qpn: 0x99 };
    let ends = Some(Ends { src: Gid([0xFC; 16]), dst });
    for (remote_qkey, seen) in [(0x11, 0x11), (1 << 31, 0x77)] {
        let to = UdTarget { ah: std::ptr::null(), remote_qpn: 0x99, remote_qkey };
        let wr = SendWr::send_to(1, &sges, to).with_flags(SendFlags::SIGNALED);
        let request = Request { wr: &wr, is_signalled: true, ends };
        end.conversation.posted(&mut end.recorder.batch(), &request, read_payload);
        assert!(!end.conversation.awaits_responses());
        let packets = end.packets();
        let (_, last) = packets.last().unwrap();
        let Operation::Datagram(deth, None) = last.packet.operation else { panic!("{last:?}") };
        assert_eq!((deth.qkey, deth.src_qpn, last.packet.dest_qpn), (seen, QPN, 0x99));
        assert_eq!((last.src, last.payload.len()), ([0xFCFC_u16; 8].into(), 6));
    }
    // Longer than a packet: the device refuses it.
    let long = sge(4097);
    let wr = SendWr::send_to(2, &long, UdTarget { ah: std::ptr::null(), remote_qpn: 9, remote_qkey: 1 });
    let request = Request { wr: &wr, is_signalled: false, ends };
    end.conversation.posted(&mut end.recorder.batch(), &request, read_payload);
    assert_eq!(end.packets().len(), 2);
}

#[test]
fn frames_are_cut_and_say_how_long_they_were() {
    let mut end = End2End::cut("cut", QpType::Rc, 64);
    end.post(&SendWr::send(1, &sge(1000)));
    let capture = end.capture();
    assert_eq!(
        (capture.frames[0].bytes.len(), capture.frames[0].len_bytes),
        (64, 14 + 20 + 8 + 12 + 1000 + 4)
    );
    assert_eq!(capture.interfaces[0].description, "synthesised from shared memory, not a network");
    assert!(capture.interfaces[0].comment.contains("Synthesised from shared memory, not a network"));
    assert!(capture.interfaces[1].description.contains("RoCEv2"));
}
