//! Batch of packets to send together, and the faults injected into it.

use std::mem::take;
use std::sync::Arc;

use farcall_capture::{Direction, Recorder, Way};
use farcall_wire::codec::{HEADERS_BYTES_MAX, ICRC_BYTES, UDP_PORT, encode, pad_bytes};
use farcall_wire::{Operation, Packet, Refused};

use super::counters::PortCounters;
use super::crc::{LastCovered, flow};
use super::ecn::Ecn;
use super::faults::{Fate, Faults};
use super::gso::Company;
use super::path::Path;
use super::socket::{DATAGRAM_BYTES_MAX, Sent, Socket, TRAIN_BYTES_MAX, TRAIN_MAX, Train};

/// Maximum number of packets in the batch.
const WAITING_MAX: usize = 64;
/// Maximum number of acknowledgements that are held back.
const KEPT_MAX: usize = 4;
/// Number of rejected GSO batches, whose packets the kernel accepted singly, after which no more are formed.
const REFUSALS_MAX: u32 = 8;

/// A packet in the batch.
#[derive(Clone, Copy)]
struct Waiting {
    path: Path,
    dest_qpn: u32,
    ecn: Ecn,
    /// `true` if it carries no data and responds to no READ, so that it may be sent a little later.
    is_acknowledgement: bool,
    company: Company,
    at: usize,
    len_bytes: usize,
    /// `true` if it is longer than the link's frames.
    may_be_cut: bool,
    /// Number of packets before it in its GSO batch, which the kernel adds to the IPv4 identification.
    before: u16,
    /// Length of the first packet of its GSO batch in bytes.
    first_bytes: usize,
}

impl Waiting {
    /// Returns whether no packet can be added to its GSO batch.
    fn ends_a_whole_train(&self) -> bool {
        let datagrams = usize::from(self.before) + 1;
        datagrams > 1 && (datagrams == TRAIN_MAX || (datagrams + 1) * self.first_bytes > TRAIN_BYTES_MAX)
    }

    /// Returns the packet as one that is sent singly.
    fn alone(self) -> Self {
        Self { before: 0, first_bytes: self.len_bytes, ..self }
    }

    /// Returns the packet as the next one of the GSO batch of `last`, if possible. All datagrams of a batch have equal
    /// length, except that the last may be shorter.
    fn behind(self, last: &Self) -> Self {
        let before = last.before + 1;
        let train_bytes = usize::from(before) * last.first_bytes + self.len_bytes;
        let fits = (last.path, last.dest_qpn, last.may_be_cut) == (self.path, self.dest_qpn, self.may_be_cut)
            && last.ecn == self.ecn
            && last.at + last.len_bytes == self.at
            && last.len_bytes == last.first_bytes
            && self.len_bytes <= last.first_bytes
            && usize::from(before) < TRAIN_MAX
            && train_bytes <= TRAIN_BYTES_MAX;
        if fits { Self { before, first_bytes: last.first_bytes, ..self } } else { self }
    }
}

/// A packet that is delayed by an injected fault.
struct Held {
    until_ns: u64,
    packet: Waiting,
    datagram: Vec<u8>,
}

/// Outgoing packets.
pub(super) struct Outbox {
    bytes: Vec<u8>,
    waiting: Vec<Waiting>,
    /// Acknowledgements that are sent after the next packets.
    kept: Vec<Waiting>,
    kept_bytes: Vec<u8>,
    covered: LastCovered,
    /// Length in bytes from which the link rejected datagrams.
    cut_from_bytes: usize,
    /// Number of times that the kernel rejected a GSO batch of packets that it accepted singly.
    refusals: u32,
    faults: Option<Faults>,
    held: Vec<Held>,
    recorder: Option<Arc<Recorder>>,
}

/// Splits packets into the GSO batches in which they are passed to the kernel.
fn trains(waiting: &[Waiting]) -> impl Iterator<Item = &[Waiting]> {
    waiting.chunk_by(|_, next| next.before > 0)
}

impl Outbox {
    pub(super) fn new(faults: Option<Faults>, recorder: Option<Arc<Recorder>>) -> Self {
        Self {
            bytes: Vec::with_capacity(WAITING_MAX * DATAGRAM_BYTES_MAX),
            waiting: Vec::with_capacity(WAITING_MAX),
            kept: Vec::with_capacity(KEPT_MAX),
            kept_bytes: Vec::with_capacity(KEPT_MAX * HEADERS_BYTES_MAX),
            covered: LastCovered::default(),
            cut_from_bytes: usize::MAX,
            refusals: 0,
            faults,
            held: Vec::new(),
            recorder,
        }
    }

    /// Adds a packet. `gather` appends its payload of `payload_bytes` bytes. If `company` permits, it may join the GSO
    /// batch of the packet before it.
    ///
    /// # Errors
    /// Returns the error of `gather`; then nothing is added.
    pub(super) fn add(
        &mut self,
        (path, company): (Path, Company),
        packet: &Packet,
        payload_bytes: usize,
        gather: impl FnOnce(&mut Vec<u8>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let at = self.bytes.len();
        let mut headers = [0; HEADERS_BYTES_MAX];
        let headers_bytes = encode(packet, payload_bytes, &mut headers);
        self.bytes.extend_from_slice(&headers[..headers_bytes]);
        if gather(&mut self.bytes).is_err() {
            self.bytes.truncate(at);
            return Err(Refused);
        }
        let len_bytes = headers_bytes + payload_bytes + pad_bytes(payload_bytes) + ICRC_BYTES;
        self.bytes.resize(at + len_bytes, 0);
        let may_be_cut = len_bytes >= self.cut_from_bytes;
        let dest_qpn = packet.dest_qpn;
        let is_datagram = matches!(packet.operation, Operation::Datagram(..));
        let ecn = if is_datagram { Ecn::NotCapable } else { Ecn::Capable };
        let is_acknowledgement = matches!(packet.operation, Operation::Acknowledge(_));
        let (before, first_bytes) = (0, len_bytes);
        let next = Waiting {
            path,
            dest_qpn,
            ecn,
            is_acknowledgement,
            company,
            at,
            len_bytes,
            may_be_cut,
            before,
            first_bytes,
        };
        self.queue(next);
        Ok(())
    }

    /// Queues a packet whose bytes are in `bytes`.
    fn queue(&mut self, mut next: Waiting) {
        // Faults are injected into individual packets.
        let may_join = next.company == Company::Train && !next.may_be_cut && self.faults.is_none();
        if let Some(last) = self.waiting.last().filter(|_| may_join && self.refusals < REFUSALS_MAX) {
            next = next.behind(last);
        }
        self.waiting.push(next);
        self.seal(&next);
    }

    /// Holds back the waiting packets until the next flush if they are a few acknowledgements. They are then sent after
    /// the packets that the application thread sends in response, and do not delay those. Returns whether it did.
    pub(super) fn keep_acknowledgements(&mut self, counters: &PortCounters) -> bool {
        let may_be_kept = |packet: &Waiting| packet.is_acknowledgement && packet.before == 0;
        if self.waiting.len() > KEPT_MAX || !self.kept.is_empty() || !self.waiting.iter().all(may_be_kept) {
            return false;
        }
        counters.acknowledgements_kept.add(self.waiting.len() as u64);
        self.kept.append(&mut self.waiting);
        self.kept_bytes.append(&mut self.bytes);
        true
    }

    /// Returns whether packets wait that are not held back.
    pub(super) fn has_more_than_kept(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Queues the acknowledgements that were held back after all other packets.
    fn queue_kept(&mut self) {
        for kept in 0..self.kept.len() {
            let packet = self.kept[kept];
            let at = self.bytes.len();
            self.bytes.extend_from_slice(&self.kept_bytes[packet.at..][..packet.len_bytes]);
            self.queue(Waiting { at, ..packet });
        }
        self.kept.clear();
        self.kept_bytes.clear();
    }

    fn seal(&mut self, packet: &Waiting) {
        let covered = self.covered.of(packet.path, UDP_PORT, packet.len_bytes);
        covered.seal(packet.before, &mut self.bytes[packet.at..][..packet.len_bytes]);
    }

    /// Returns the recorder of packets if a capture is configured.
    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_deref()
    }

    /// Returns whether the batch is full: no packet fits, or it ends with a full GSO batch. A short GSO batch after
    /// that would cost the kernel as much again.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX || self.waiting.last().is_some_and(Waiting::ends_a_whole_train)
    }

    /// Sends all waiting packets.
    pub(super) fn flush(&mut self, socket: &Socket, counters: &PortCounters, now_ns: u64) {
        self.queue_kept();
        if self.faults.is_some() {
            self.misfortune(counters, now_ns);
        }
        let (mut done, mut refused_at) = (0, None);
        while let Some(first) = self.waiting.get(done).copied() {
            let trains_left = trains(&self.waiting[done..]);
            let alike = trains_left.take_while(|train| train[0].may_be_cut == first.may_be_cut);
            let messages = alike.map(|train| Train {
                path: train[0].path,
                bytes: &self.bytes[train[0].at..][..train.iter().map(|packet| packet.len_bytes).sum()],
                datagram_bytes: train[0].len_bytes,
                ecn: train[0].ecn,
            });
            match socket.send(messages, first.may_be_cut) {
                Sent::Some(sent) => {
                    let trains = trains(&self.waiting[done..]);
                    let sent = trains.take(sent).map(<[Waiting]>::len).sum::<usize>();
                    self.record(&self.waiting[done..][..sent]);
                    // Packets from an address that was removed are rejected both as a batch and singly.
                    self.refusals += u32::from(refused_at == Some(done));
                    counters.packets_sent.add(sent as u64);
                    let in_trains = self.waiting[done..][..sent].iter().filter(|packet| packet.before > 0);
                    counters.sent_in_trains.add(in_trains.count() as u64);
                    done += sent.max(1);
                }
                Sent::NoTrain => {
                    refused_at = Some(done);
                    self.take_apart(done);
                }
                Sent::TooLong if !first.may_be_cut => {
                    self.cut_from_bytes = self.cut_from_bytes.min(first.len_bytes);
                    self.waiting[done].may_be_cut = true;
                }
                Sent::TooLong | Sent::Lost => {
                    let lost = self.train_len(done);
                    counters.packets_not_sent.add(lost as u64);
                    done += lost;
                }
            }
        }
        self.waiting.clear();
        self.bytes.clear();
    }

    /// Returns the number of packets in the GSO batch that begins at `first`.
    fn train_len(&self, first: usize) -> usize {
        trains(&self.waiting[first..]).next().map_or(0, <[Waiting]>::len)
    }

    /// Splits the GSO batch that begins at `first` into packets that are sent singly.
    #[cold]
    fn take_apart(&mut self, first: usize) {
        for at in first..first + self.train_len(first) {
            let packet = self.waiting[at].alone();
            self.waiting[at] = packet;
            self.seal(&packet);
        }
    }

    /// Records packets that were sent, if a capture is configured.
    fn record(&self, sent: &[Waiting]) {
        let Some(recorder) = &self.recorder else { return };
        let mut batch = recorder.batch();
        for packet in sent {
            let datagram = &self.bytes[packet.at..][..packet.len_bytes];
            let flow = flow(packet.path, UDP_PORT);
            batch.datagram(Way::Net, Direction::Out, &flow, datagram);
        }
    }

    /// Injects faults into the waiting packets, and adds delayed packets whose time has come.
    #[cold]
    fn misfortune(&mut self, counters: &PortCounters, now_ns: u64) {
        let Some(mut faults) = self.faults.take() else { return };
        for mut packet in take(&mut self.waiting) {
            let Fate { is_lost, is_doubled, turned, held_ns, is_marked } = faults.judge(now_ns);
            // A packet that is not ECN-capable is never marked, as in a network.
            let is_marked = is_marked && packet.ecn == Ecn::Capable;
            if is_lost || is_doubled || turned.is_some() || held_ns > 0 || is_marked {
                counters.faults.increment();
            }
            if is_marked {
                packet.ecn = Ecn::Congested;
            }
            let Waiting { at, len_bytes, .. } = packet;
            let datagram = &mut self.bytes[at..][..len_bytes];
            if let Some(turned) = turned {
                let bit = (u64::from(turned) * (len_bytes as u64 * 8)) >> 32;
                datagram[bit as usize / 8] ^= 1 << (bit % 8);
            }
            if held_ns > 0 && !is_lost {
                let until_ns = now_ns + held_ns;
                self.held.push(Held { until_ns, packet, datagram: datagram.to_vec() });
            }
            let copies = usize::from(!is_lost && held_ns == 0) + usize::from(!is_lost && is_doubled);
            self.waiting.extend(std::iter::repeat_n(packet, copies));
        }
        for held in self.held.extract_if(.., |held| held.until_ns <= now_ns) {
            let at = self.bytes.len();
            self.bytes.extend_from_slice(&held.datagram);
            self.waiting.push(Waiting { at, ..held.packet });
        }
        self.faults = Some(faults);
    }

    /// Returns the time at which the next delayed packet must be sent.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.held.iter().map(|held| held.until_ns).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_train_is_of_packets_of_one_length_to_one_pair() {
        let path = |dst: &str| Path { src: "::1".parse().unwrap(), dst: dst.parse().unwrap() };
        let packet = |dst, dest_qpn, at, len_bytes| Waiting {
            path: path(dst),
            dest_qpn,
            ecn: Ecn::Capable,
            is_acknowledgement: false,
            company: Company::Train,
            at,
            len_bytes,
            may_be_cut: false,
            before: 0,
            first_bytes: len_bytes,
        };
        let first = packet("fd00::2", 7, 0, 1_040);
        let joins = |next: Waiting, last: &Waiting| next.behind(last).before == last.before + 1;
        assert!(joins(packet("fd00::2", 7, 1_040, 1_040), &first));
        assert!(joins(packet("fd00::2", 7, 1_040, 20), &first));
        for other in [
            packet("fd00::3", 7, 1_040, 1_040),
            packet("fd00::2", 8, 1_040, 1_040),
            packet("fd00::2", 7, 1_040, 1_044),
            packet("fd00::2", 7, 2_080, 1_040),
            Waiting { ecn: Ecn::NotCapable, ..packet("fd00::2", 7, 1_040, 1_040) },
            Waiting { may_be_cut: true, ..packet("fd00::2", 7, 1_040, 1_040) },
        ] {
            assert!(!joins(other, &first));
        }
        // A shorter packet is the last of its batch.
        let shorter = packet("fd00::2", 7, 1_040, 20).behind(&first);
        assert!(!joins(packet("fd00::2", 7, 1_060, 20), &shorter));
        // The batch ends at the kernel's limits on number and length.
        for (len_bytes, most) in [(100, 64), (4_160, 15)] {
            let mut last = packet("fd00::2", 7, 0, len_bytes);
            let joined = (1..100).take_while(|nth| {
                let was_whole = last.ends_a_whole_train();
                last = packet("fd00::2", 7, nth * len_bytes, len_bytes).behind(&last);
                assert_eq!(was_whole, last.before == 0, "{len_bytes}, {nth}");
                last.before > 0
            });
            assert_eq!(joined.count() + 1, most, "{len_bytes}");
        }
    }
}
