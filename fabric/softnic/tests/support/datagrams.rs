//! Ends that send and receive datagrams.

use std::time::Instant;

use farcall_verbs::{AddressHandle, QpCap, QpType, SendWr, UdTarget, Wc, WcOpcode, WcStatus};

use super::{End, LOST, QKEY, SIGNALED};

/// Number of bytes before the payload of every datagram.
pub const GRH: usize = 40;

/// A datagram end and an address handle for this host.
pub struct Ud {
    pub end: End,
    pub ah: Box<dyn AddressHandle>,
}

impl Ud {
    pub fn with(cap: QpCap) -> Self {
        let mut end = End::of(QpType::Ud, cap);
        end.connect(0);
        let ah = end.pd.create_ah(&end.path()).unwrap();
        Self { end, ah }
    }

    pub fn new() -> Self {
        Self::with(QpCap::default())
    }

    pub fn qpn(&self) -> u32 {
        self.end.qp.qp_num()
    }

    pub fn to(&self, qpn: u32, qkey: u32) -> UdTarget {
        UdTarget { ah: self.ah.as_raw(), remote_qpn: qpn, remote_qkey: qkey }
    }

    /// Sends bytes to a queue pair; the send always succeeds.
    pub fn send(&mut self, qpn: u32, qkey: u32, bytes: &[u8]) {
        self.end.put(0, bytes);
        let (sges, to) = ([self.end.sge(0, bytes.len())], self.to(qpn, qkey));
        self.end.send(&[SendWr::send_to(9, &sges, to).with_flags(SIGNALED)]);
        let wc = self.end.wait();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (9, WcStatus::SUCCESS, WcOpcode::SEND));
    }

    /// Posts a receive in a slot of its own for a payload of `len` bytes.
    pub fn recv(&mut self, wr_id: u64, len: usize) {
        let sges = [self.end.sge(slot(wr_id), GRH + len)];
        self.end.recv(wr_id, &sges);
    }

    /// Returns the next datagram: its completion and payload.
    pub fn take(&mut self) -> (Wc, Vec<u8>) {
        let wc = self.end.wait();
        (wc, self.payload(&wc))
    }

    /// Returns the value of a counter of the queue pair.
    pub fn counted(&self, name: &str) -> u64 {
        let report = farcall_stats::read_pid(std::process::id()).unwrap();
        let label = format!("softnic ud qp {:#08x}", self.qpn());
        let mut live = report.blocks.iter().filter(|block| block.live);
        let mine = live.find(|block| block.label == label).expect("the pair's counters");
        mine.counters.iter().find(|(counter, _)| counter == name).expect("a counter of that name").1
    }

    /// Repeats `meanwhile` until the counter of the queue pair is not 0.
    pub fn until_counted(&mut self, name: &str, mut meanwhile: impl FnMut(&mut Self)) {
        let start = Instant::now();
        while self.counted(name) == 0 {
            assert!(start.elapsed() < LOST, "nothing is counted as {name}");
            meanwhile(self);
            std::thread::yield_now();
        }
    }

    pub fn payload(&self, wc: &Wc) -> Vec<u8> {
        assert_eq!((wc.status, wc.opcode), (WcStatus::SUCCESS, WcOpcode::RECV));
        self.end.get(slot(wc.wr_id) + GRH, wc.byte_len as usize - GRH)
    }
}

/// Returns the offset of a receive by its number.
pub fn slot(wr_id: u64) -> usize {
    (1 + wr_id as usize % 128) * 4608
}

/// Sends one datagram and verifies that it arrives, and nothing else.
pub fn arrives(a: &mut Ud, b: &mut Ud, bytes: &[u8]) {
    b.recv(77, bytes.len());
    a.send(b.qpn(), QKEY, bytes);
    let (wc, got) = b.take();
    assert_eq!((wc.wr_id, wc.src_qp), (77, a.qpn()));
    assert_eq!((got, b.end.poll()), (bytes.to_vec(), None));
}
