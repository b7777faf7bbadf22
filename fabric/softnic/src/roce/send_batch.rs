//! Batch of packets to send together, and the faults injected into it.

use std::mem::take;
use std::sync::Arc;

use farcall_capture::{CaptureSource, Direction, Recorder};
use farcall_wire::codec::{HEADERS_BYTES_MAX, ICRC_BYTES, encode, pad_bytes};
use farcall_wire::{AccessDenied, Operation, Packet};

use super::counters::PortCounters;
use super::crc::{LastCovered, flow};
use super::ecn::Ecn;
use super::faults::{FaultDecision, Faults};
use super::gso::GsoMode;
use super::path::Path;
use super::send_sockets::SendSockets;
use super::socket::{
    BatchSendResult, DATAGRAM_BYTES_MAX, GSO_BATCH_BYTES_MAX, GSO_BATCH_MAX, GsoBatch, send,
};

/// Maximum number of packets in the batch.
const PACKETS_MAX: usize = 64;
/// Maximum number of acknowledgements that are held back.
const HELD_MAX: usize = 4;
/// Number of rejected GSO batches, whose packets the kernel accepted singly, after which no more are formed.
const REFUSALS_MAX: u32 = 8;

/// Addressing and transmission mode of a packet.
#[derive(Clone, Copy)]
pub(super) struct Route {
    pub(super) path: Path,
    pub(super) src_port: u16,
    pub(super) gso_mode: GsoMode,
}

/// A packet in the batch.
#[derive(Clone, Copy)]
struct QueuedPacket {
    path: Path,
    src_port: u16,
    dest_qpn: u32,
    ecn: Ecn,
    /// `true` if it carries no data and responds to no READ, so that it may be sent a little later.
    is_acknowledgement: bool,
    gso_mode: GsoMode,
    at: usize,
    len_bytes: usize,
    /// `true` if it is longer than the link's frames.
    may_be_fragmented: bool,
    /// Number of packets before it in its GSO batch, which the kernel adds to the IPv4 identification.
    index_in_batch: u16,
    /// Length of the first packet of its GSO batch in bytes.
    first_bytes: usize,
}

impl QueuedPacket {
    /// Returns whether no packet can be added to its GSO batch.
    fn ends_full_batch(&self) -> bool {
        let datagrams = usize::from(self.index_in_batch) + 1;
        datagrams > 1
            && (datagrams == GSO_BATCH_MAX || (datagrams + 1) * self.first_bytes > GSO_BATCH_BYTES_MAX)
    }

    /// Returns the packet as one that is sent singly.
    fn singly(self) -> Self {
        Self { index_in_batch: 0, first_bytes: self.len_bytes, ..self }
    }

    /// Returns the packet as the next one of the GSO batch of `last`, if possible. All datagrams of a batch have equal
    /// length, except that the last may be shorter.
    fn appended_to(self, last: &Self) -> Self {
        let index_in_batch = last.index_in_batch + 1;
        let batch_bytes = usize::from(index_in_batch) * last.first_bytes + self.len_bytes;
        let fits = (last.path, last.src_port, last.dest_qpn, last.may_be_fragmented)
            == (self.path, self.src_port, self.dest_qpn, self.may_be_fragmented)
            && last.ecn == self.ecn
            && last.at + last.len_bytes == self.at
            && last.len_bytes == last.first_bytes
            && self.len_bytes <= last.first_bytes
            && usize::from(index_in_batch) < GSO_BATCH_MAX
            && batch_bytes <= GSO_BATCH_BYTES_MAX;
        if fits { Self { index_in_batch, first_bytes: last.first_bytes, ..self } } else { self }
    }
}

/// A packet that is delayed by an injected fault.
struct DelayedPacket {
    until_ns: u64,
    packet: QueuedPacket,
    datagram: Vec<u8>,
}

/// Outgoing packets.
pub(super) struct SendBatch {
    bytes: Vec<u8>,
    packets: Vec<QueuedPacket>,
    /// Acknowledgements that are sent after the next packets.
    held: Vec<QueuedPacket>,
    held_bytes: Vec<u8>,
    covered: LastCovered,
    /// Length in bytes from which the link rejected datagrams.
    fragmented_from_bytes: usize,
    /// Number of times that the kernel rejected a GSO batch of packets that it accepted singly.
    refusals: u32,
    faults: Option<Faults>,
    delayed: Vec<DelayedPacket>,
    recorder: Option<Arc<Recorder>>,
}

/// Splits packets into the GSO batches in which they are passed to the kernel.
fn gso_batches(packets: &[QueuedPacket]) -> impl Iterator<Item = &[QueuedPacket]> {
    packets.chunk_by(|_, next| next.index_in_batch > 0)
}

impl SendBatch {
    pub(super) fn new(faults: Option<Faults>, recorder: Option<Arc<Recorder>>) -> Self {
        Self {
            bytes: Vec::with_capacity(PACKETS_MAX * DATAGRAM_BYTES_MAX),
            packets: Vec::with_capacity(PACKETS_MAX),
            held: Vec::with_capacity(HELD_MAX),
            held_bytes: Vec::with_capacity(HELD_MAX * HEADERS_BYTES_MAX),
            covered: LastCovered::default(),
            fragmented_from_bytes: usize::MAX,
            refusals: 0,
            faults,
            delayed: Vec::new(),
            recorder,
        }
    }

    /// Adds a packet. `gather` appends its payload of `payload_bytes` bytes. If the route permits, it may join the GSO
    /// batch of the packet before it.
    ///
    /// # Errors
    /// Returns the error of `gather`; then nothing is added.
    pub(super) fn add(
        &mut self,
        route: Route,
        packet: &Packet,
        payload_bytes: usize,
        gather: impl FnOnce(&mut Vec<u8>) -> Result<(), AccessDenied>,
    ) -> Result<(), AccessDenied> {
        let at = self.bytes.len();
        let mut headers = [0; HEADERS_BYTES_MAX];
        let headers_bytes = encode(packet, payload_bytes, &mut headers);
        self.bytes.extend_from_slice(&headers[..headers_bytes]);
        if gather(&mut self.bytes).is_err() {
            self.bytes.truncate(at);
            return Err(AccessDenied);
        }
        let len_bytes = headers_bytes + payload_bytes + pad_bytes(payload_bytes) + ICRC_BYTES;
        self.bytes.resize(at + len_bytes, 0);
        let may_be_fragmented = len_bytes >= self.fragmented_from_bytes;
        let dest_qpn = packet.dest_qpn;
        let is_datagram = matches!(packet.operation, Operation::Datagram(..));
        let ecn = if is_datagram { Ecn::NotCapable } else { Ecn::Capable };
        let is_acknowledgement = matches!(packet.operation, Operation::Acknowledge(_));
        let (index_in_batch, first_bytes) = (0, len_bytes);
        let Route { path, src_port, gso_mode } = route;
        let next = QueuedPacket {
            path,
            src_port,
            dest_qpn,
            ecn,
            is_acknowledgement,
            gso_mode,
            at,
            len_bytes,
            may_be_fragmented,
            index_in_batch,
            first_bytes,
        };
        self.queue(next);
        Ok(())
    }

    /// Queues a packet whose bytes are in `bytes`.
    fn queue(&mut self, mut next: QueuedPacket) {
        // Faults are injected into individual packets.
        let may_join = next.gso_mode == GsoMode::Batch && !next.may_be_fragmented && self.faults.is_none();
        if let Some(last) = self.packets.last().filter(|_| may_join && self.refusals < REFUSALS_MAX) {
            next = next.appended_to(last);
        }
        self.packets.push(next);
        self.seal(&next);
    }

    /// Holds back the waiting packets until the next flush if they are a few acknowledgements. They are then sent after
    /// the packets that the application thread sends in response, and do not delay those. Returns whether it did.
    pub(super) fn hold_acknowledgements(&mut self, counters: &PortCounters) -> bool {
        let may_be_held = |packet: &QueuedPacket| packet.is_acknowledgement && packet.index_in_batch == 0;
        if self.packets.len() > HELD_MAX || !self.held.is_empty() || !self.packets.iter().all(may_be_held) {
            return false;
        }
        counters.acknowledgements_kept.add(self.packets.len() as u64);
        self.held.append(&mut self.packets);
        self.held_bytes.append(&mut self.bytes);
        true
    }

    /// Returns whether packets wait that are not held back.
    pub(super) fn has_packets_to_send(&self) -> bool {
        !self.packets.is_empty()
    }

    /// Queues the acknowledgements that were held back after all other packets.
    fn queue_held(&mut self) {
        for held in 0..self.held.len() {
            let packet = self.held[held];
            let at = self.bytes.len();
            self.bytes.extend_from_slice(&self.held_bytes[packet.at..][..packet.len_bytes]);
            self.queue(QueuedPacket { at, ..packet });
        }
        self.held.clear();
        self.held_bytes.clear();
    }

    fn seal(&mut self, packet: &QueuedPacket) {
        let covered = self.covered.of(packet.path, packet.src_port, packet.len_bytes);
        covered.seal(packet.index_in_batch, &mut self.bytes[packet.at..][..packet.len_bytes]);
    }

    /// Returns the recorder of packets if a capture is configured.
    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_deref()
    }

    /// Returns whether the batch is full: no packet fits, or it ends with a full GSO batch. A short GSO batch after
    /// that would cost the kernel as much again.
    pub(super) fn is_full(&self) -> bool {
        self.packets.len() >= PACKETS_MAX || self.packets.last().is_some_and(QueuedPacket::ends_full_batch)
    }

    /// Sends all waiting packets.
    pub(super) fn flush(&mut self, sockets: &SendSockets, counters: &PortCounters, now_ns: u64) {
        self.queue_held();
        if self.faults.is_some() {
            self.inject_faults(counters, now_ns);
        }
        let (mut done, mut refused_at) = (0, None);
        while let Some(first) = self.packets.get(done).copied() {
            let batches_left = gso_batches(&self.packets[done..]);
            let kind = |packet: &QueuedPacket| (packet.src_port, packet.may_be_fragmented);
            let same_kind = batches_left.take_while(|batch| kind(&batch[0]) == kind(&first));
            let messages = same_kind.map(|batch| GsoBatch {
                path: batch[0].path,
                bytes: &self.bytes[batch[0].at..][..batch.iter().map(|packet| packet.len_bytes).sum()],
                segment_bytes: batch[0].len_bytes,
                ecn: batch[0].ecn,
            });
            // The queue pair of a delayed packet may have been closed.
            let sent = sockets
                .socket(first.src_port)
                .map_or(BatchSendResult::Lost, |socket| send(socket, messages, first.may_be_fragmented));
            match sent {
                BatchSendResult::Some(sent) => {
                    let gso_batches = gso_batches(&self.packets[done..]);
                    let sent = gso_batches.take(sent).map(<[QueuedPacket]>::len).sum::<usize>();
                    self.record(&self.packets[done..][..sent]);
                    // Packets from an address that was removed are rejected both as a batch and singly.
                    self.refusals += u32::from(refused_at == Some(done));
                    counters.packets_sent.add(sent as u64);
                    let batched =
                        self.packets[done..][..sent].iter().filter(|packet| packet.index_in_batch > 0);
                    counters.sent_in_trains.add(batched.count() as u64);
                    done += sent.max(1);
                }
                BatchSendResult::NoGso => {
                    refused_at = Some(done);
                    self.split_batch(done);
                }
                BatchSendResult::TooLong if !first.may_be_fragmented => {
                    self.fragmented_from_bytes = self.fragmented_from_bytes.min(first.len_bytes);
                    self.packets[done].may_be_fragmented = true;
                }
                BatchSendResult::TooLong | BatchSendResult::Lost => {
                    let lost = self.batch_len(done);
                    counters.packets_not_sent.add(lost as u64);
                    done += lost;
                }
            }
        }
        self.packets.clear();
        self.bytes.clear();
    }

    /// Returns the number of packets in the GSO batch that begins at `first`.
    fn batch_len(&self, first: usize) -> usize {
        gso_batches(&self.packets[first..]).next().map_or(0, <[QueuedPacket]>::len)
    }

    /// Splits the GSO batch that begins at `first` into packets that are sent singly.
    #[cold]
    fn split_batch(&mut self, first: usize) {
        for at in first..first + self.batch_len(first) {
            let packet = self.packets[at].singly();
            self.packets[at] = packet;
            self.seal(&packet);
        }
    }

    /// Records packets that were sent, if a capture is configured.
    fn record(&self, sent: &[QueuedPacket]) {
        let Some(recorder) = &self.recorder else { return };
        let mut capture = recorder.batch();
        for packet in sent {
            let datagram = &self.bytes[packet.at..][..packet.len_bytes];
            let flow = flow(packet.path, packet.src_port);
            capture.datagram(CaptureSource::RoCE, Direction::Out, &flow, datagram);
        }
    }

    /// Injects faults into the waiting packets, and adds delayed packets that are due.
    #[cold]
    fn inject_faults(&mut self, counters: &PortCounters, now_ns: u64) {
        let Some(mut faults) = self.faults.take() else { return };
        for mut packet in take(&mut self.packets) {
            let FaultDecision { is_lost, is_duplicated, flipped_bit, delay_ns, is_marked } =
                faults.decide(now_ns);
            // A packet that is not ECN-capable is never marked, as in a network.
            let is_marked = is_marked && packet.ecn == Ecn::Capable;
            if is_lost || is_duplicated || flipped_bit.is_some() || delay_ns > 0 || is_marked {
                counters.faults.increment();
            }
            if is_marked {
                packet.ecn = Ecn::Congested;
            }
            let QueuedPacket { at, len_bytes, .. } = packet;
            let datagram = &mut self.bytes[at..][..len_bytes];
            if let Some(flipped_bit) = flipped_bit {
                let bit = (u64::from(flipped_bit) * (len_bytes as u64 * 8)) >> 32;
                datagram[bit as usize / 8] ^= 1 << (bit % 8);
            }
            if delay_ns > 0 && !is_lost {
                let until_ns = now_ns + delay_ns;
                self.delayed.push(DelayedPacket { until_ns, packet, datagram: datagram.to_vec() });
            }
            let copies = usize::from(!is_lost && delay_ns == 0) + usize::from(!is_lost && is_duplicated);
            self.packets.extend(std::iter::repeat_n(packet, copies));
        }
        for delayed in self.delayed.extract_if(.., |delayed| delayed.until_ns <= now_ns) {
            let at = self.bytes.len();
            self.bytes.extend_from_slice(&delayed.datagram);
            self.packets.push(QueuedPacket { at, ..delayed.packet });
        }
        self.faults = Some(faults);
    }

    /// Returns the time at which the next delayed packet must be sent.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.delayed.iter().map(|delayed| delayed.until_ns).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_train_is_of_packets_of_one_length_to_one_pair() {
        let path = |dst: &str| Path { src: "::1".parse().unwrap(), dst: dst.parse().unwrap() };
        let packet = |dst, dest_qpn, at, len_bytes| QueuedPacket {
            path: path(dst),
            src_port: 0x8000,
            dest_qpn,
            ecn: Ecn::Capable,
            is_acknowledgement: false,
            gso_mode: GsoMode::Batch,
            at,
            len_bytes,
            may_be_fragmented: false,
            index_in_batch: 0,
            first_bytes: len_bytes,
        };
        let first = packet("fd00::2", 7, 0, 1_040);
        let can_join = |next: QueuedPacket, last: &QueuedPacket| {
            next.appended_to(last).index_in_batch == last.index_in_batch + 1
        };
        assert!(can_join(packet("fd00::2", 7, 1_040, 1_040), &first));
        assert!(can_join(packet("fd00::2", 7, 1_040, 20), &first));
        for other in [
            packet("fd00::3", 7, 1_040, 1_040),
            packet("fd00::2", 8, 1_040, 1_040),
            packet("fd00::2", 7, 1_040, 1_044),
            packet("fd00::2", 7, 2_080, 1_040),
            QueuedPacket { ecn: Ecn::NotCapable, ..packet("fd00::2", 7, 1_040, 1_040) },
            QueuedPacket { src_port: 0x8001, ..packet("fd00::2", 7, 1_040, 1_040) },
            QueuedPacket { may_be_fragmented: true, ..packet("fd00::2", 7, 1_040, 1_040) },
        ] {
            assert!(!can_join(other, &first));
        }
        // A shorter packet is the last of its batch.
        let shorter = packet("fd00::2", 7, 1_040, 20).appended_to(&first);
        assert!(!can_join(packet("fd00::2", 7, 1_060, 20), &shorter));
        // The batch ends at the kernel's limits on number and length.
        for (len_bytes, most) in [(100, 64), (4_160, 15)] {
            let mut last = packet("fd00::2", 7, 0, len_bytes);
            let joined = (1..100).take_while(|nth| {
                let was_full = last.ends_full_batch();
                last = packet("fd00::2", 7, nth * len_bytes, len_bytes).appended_to(&last);
                assert_eq!(was_full, last.index_in_batch == 0, "{len_bytes}, {nth}");
                last.index_in_batch > 0
            });
            assert_eq!(joined.count() + 1, most, "{len_bytes}");
        }
    }
}
