//! An end over UC or UD that sends numbered messages, and checks those it receives.

use farcall_verbs::{
    AddressHandle, AtomicTarget, Error, Mtu, Notify, QpAttr, QpCap, QpState, QpType, SendWr, Sge, UdTarget,
    Wc, WcOpcode, WcStatus, WrOpcode,
};

use super::process::Address;
use super::{End, QKEY, SIGNALED, bytes};

const SLOT: usize = 8192;
/// Number of slots for receives; those of sends follow.
pub const RECEIVES: u64 = 8;
/// Number of bytes before a datagram's payload; the same space is left over UC.
const HEADER: usize = 40;
/// Target of the other end's WRITEs.
const WRITTEN: usize = 1 << 19;

/// An end that sends numbered messages and receives them.
pub struct Side {
    pub end: End,
    pub ah: Option<Box<dyn AddressHandle>>,
    pub dest: Address,
    pub sent: u64,
    pub ended: u64,
    pub posted: u64,
    /// Number of the last message from `dest`.
    pub last_seen: Option<u64>,
}

fn len_of(seq: u64) -> usize {
    [8, 100, 1500, 4000][seq as usize % 4]
}

/// A message contains its number, so that each can be checked by itself.
fn message(seq: u64) -> Vec<u8> {
    [&seq.to_le_bytes()[..], &bytes(len_of(seq) - 8, seq)].concat()
}

impl Side {
    pub fn new(qp_type: QpType) -> Self {
        let mut end = End::of(qp_type, QpCap { max_send_wr: 16, max_recv_wr: 8, ..QpCap::default() });
        end.init();
        let ah = (qp_type == QpType::Ud).then(|| end.pd.create_ah(&end.path()).unwrap());
        let dest = Address { qpn: 0, addr: 0, rkey: 0 };
        Self { end, ah, dest, sent: 0, ended: 0, posted: 0, last_seen: None }
    }

    /// Returns `false` if the other process has exited, or does not reply.
    pub fn connect(&mut self, dest: Address) -> bool {
        self.dest = dest;
        let attr = match self.end.qp.qp_type() {
            QpType::Ud => QpAttr::to(QpState::Rtr),
            _ => QpAttr::rtr_unreliable(dest.qpn, 0, self.end.path(), Mtu::Mtu4096),
        };
        if let Err(error) = self.end.qp.modify(&attr) {
            assert!(matches!(error, Error::Peer { .. } | Error::Os { .. }), "{error}");
            return false;
        }
        self.end.rts();
        for _ in 0..RECEIVES {
            self.post_receive();
        }
        true
    }

    fn post_receive(&mut self) {
        let sges = [self.end.sge((self.posted % RECEIVES) as usize * SLOT, SLOT)];
        self.end.recv(self.posted, &sges);
        self.posted += 1;
    }

    /// Sends the next message to a queue pair; over UC it sometimes uses a WRITE.
    pub fn send_to(&mut self, qpn: u32) {
        let (seq, at) = (self.sent, (RECEIVES + self.sent % 8) as usize * SLOT);
        let data = message(seq);
        self.end.put(at, &data);
        let sges = [self.end.sge(at, data.len())];
        let (addr, rkey) = (self.dest.addr + WRITTEN as u64, self.dest.rkey);
        let wr = match &self.ah {
            Some(ah) => {
                let to = UdTarget { ah: ah.as_raw(), remote_qpn: qpn, remote_qkey: QKEY };
                SendWr::send_to(seq, &sges, to).with_imm(seq as u32)
            }
            None if seq % 3 == 1 => SendWr::write(seq, &sges, addr, rkey),
            None if seq % 3 == 2 => SendWr::write(seq, &sges, addr, rkey).with_imm(seq as u32),
            None => SendWr::send(seq, &sges).with_imm(seq as u32),
        };
        self.end.send(&[wr.with_flags(SIGNALED)]);
        self.sent += 1;
    }

    /// Checks one completion; returns whether it is that of a message.
    fn take(&mut self, wc: &Wc) -> bool {
        if !wc.opcode.is_receive() {
            assert_eq!((wc.wr_id, wc.status), (self.ended, WcStatus::SUCCESS), "a sender never hears of it");
            self.ended += 1;
            return false;
        }
        assert_eq!(wc.status, WcStatus::SUCCESS);
        let header = if self.ah.is_some() { HEADER } else { 0 };
        let len = wc.byte_len as usize - header;
        if wc.opcode == WcOpcode::RECV {
            let got = self.end.get((wc.wr_id % RECEIVES) as usize * SLOT + header, len);
            let seq = u64::from_le_bytes(got[..8].try_into().unwrap());
            assert!(got == message(seq), "message {seq} is corrupt");
            assert_eq!(wc.imm(), Some(seq as u32));
        }
        let seq = u64::from(wc.imm().unwrap());
        assert_eq!(len, len_of(seq), "message {seq}");
        if wc.src_qp == self.dest.qpn {
            assert!(self.last_seen.is_none_or(|last| last < seq), "message {seq} after {:?}", self.last_seen);
            self.last_seen = Some(seq);
        }
        self.post_receive();
        true
    }

    /// Handles all available completions.
    pub fn drain(&mut self) {
        while let Some(wc) = self.end.poll() {
            self.take(&wc);
        }
    }

    /// Sleeps until `messages` messages have arrived.
    pub fn sleep_for(&mut self, messages: usize) {
        let mut got = 0;
        while got < messages {
            let wc = self.end.sleep(Notify::Any);
            got += usize::from(self.take(&wc));
        }
    }

    /// Enters the error state and takes back all receives, including those of the last messages.
    pub fn fail(&mut self) {
        self.end.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
        let mut left = RECEIVES;
        while left > 0 {
            let wc = self.end.wait();
            if wc.opcode.is_receive() {
                assert!(matches!(wc.status, WcStatus::SUCCESS | WcStatus::WR_FLUSH_ERR), "{wc:?}");
                left -= 1;
            }
        }
    }
}

/// Posts READ and atomics over UC. They end in an operation error, stop the send queue and change nothing.
pub fn end_in_operation_errors(a: &mut End, b: &mut End) {
    let (addr, rkey) = (b.mr.addr() as u64, b.mr.rkey());
    b.put(0, &[7; 8]);
    let (good, no_key) = (a.sge(64, 8), Sge { lkey: u32::MAX, ..a.sge(64, 8) });
    let word = AtomicTarget { remote_addr: addr, compare_add: 1, swap: 0, rkey };
    for sges in [[good], [no_key]] {
        for wr in [
            SendWr::read(5, &sges, addr, rkey),
            SendWr::atomic(WrOpcode::ATOMIC_FETCH_AND_ADD, 5, &sges, word),
            SendWr::atomic(WrOpcode::ATOMIC_CMP_AND_SWP, 5, &sges, word),
        ] {
            a.send(&[wr]);
            let wc = a.wait();
            assert_eq!((wc.wr_id, wc.status), (5, WcStatus::LOC_QP_OP_ERR), "{:?}", wr.opcode);
            assert_eq!((a.qp.state(), b.qp.state(), b.poll()), (QpState::Sqe, QpState::Rts, None));
            a.rts();
        }
    }
    assert_eq!((b.get(0, 8), a.get(64, 8)), (vec![7; 8], vec![0; 8]));
    b.recv(1, &[b.sge(0, 8)]);
    a.send(&[SendWr::send(1, &[good])]);
    assert_eq!(b.wait().wr_id, 1);
}
