//! A sender of arbitrary datagrams.

use std::sync::Arc;
use std::time::Instant;

use farcall_link::bootstrap::QpInfo;
use farcall_link::{AddressId, Datagrams, LocalSlice, Nic, QpSizes, Region, RegionId};
use farcall_verbs::{Access, CqInitAttr, RawCq, Wc};

use super::LOST;

pub struct Sender {
    pub pair: Datagrams,
    cq: Box<dyn RawCq>,
    memory: Arc<Region>,
    memory_id: RegionId,
    to: Option<AddressId>,
}

impl Sender {
    pub fn new(nic: &Nic) -> Self {
        let cq = nic.context().create_cq(&CqInitAttr { cqe: 64, channel: None }).unwrap();
        let config = QpSizes {
            send_depth: 16,
            recv_depth: 0,
            signal_every: 1,
            inline_max_bytes: 0,
            sges_max: 1,
            access: Access::LOCAL_WRITE,
        };
        let mut pair = Datagrams::new(nic, &*cq, config, None).unwrap();
        pair.start().unwrap();
        let memory = Arc::new(Region::alloc(&**nic.pd(), 4_096, Access::LOCAL_WRITE).unwrap());
        let memory_id = pair.attach(Arc::clone(&memory));
        Self { pair, cq, memory, memory_id, to: None }
    }

    /// Sets the destination of later datagrams.
    pub fn aim(&mut self, nic: &Nic, to: &QpInfo) {
        self.to = Some(self.pair.add_peer(nic, to).unwrap());
    }

    /// Sends the first `len_bytes` of header, payload and tail. Returns when the buffer may be reused.
    pub fn send_first(&mut self, header: &[u64], payload: &[u8], tail: u64, len_bytes: usize) {
        for (at, word) in header.iter().enumerate() {
            self.memory.store_relaxed(8 * at, *word);
        }
        self.memory.copy_in(8 * header.len(), payload);
        self.memory.store_relaxed(8 * header.len() + payload.len(), tail);
        let piece = LocalSlice { region: self.memory_id, offset: 0, len_bytes };
        let ticket = self.pair.send(piece, self.to.unwrap()).unwrap();
        let start = Instant::now();
        while !self.pair.is_done(ticket) {
            assert!(start.elapsed() < LOST, "the datagram is not sent");
            let mut wc = [Wc::default()];
            if self.cq.poll(&mut wc).unwrap() == 1 {
                self.pair.complete(&wc[0]);
            }
        }
    }
}
