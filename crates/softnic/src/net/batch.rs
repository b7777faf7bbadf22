//! Packets that wait to be sent together, and faults that happen to them.

use std::mem::take;
use std::net::Ipv6Addr;
use std::sync::Arc;

use farcall_capture::{Direction, Recorder, Way};
use farcall_wire::codec::{HEADERS_BYTES_MAX, ICRC_BYTES, UDP_PORT, encode, icrc, pad_bytes};
use farcall_wire::{Packet, Refused};

use super::counters::PortCounters;
use super::faults::{Fate, Faults};
use super::path::Path;
use super::socket::{BATCH, DATAGRAM_BYTES_MAX, Sent, Socket};

/// A packet in the batch.
#[derive(Clone, Copy)]
struct Waiting {
    path: Path,
    at: usize,
    len_bytes: usize,
    /// It is longer than the link's frames.
    may_be_cut: bool,
}

/// A packet that a fault holds up.
struct Held {
    until_ns: u64,
    path: Path,
    may_be_cut: bool,
    datagram: Vec<u8>,
}

/// Packets on their way out.
pub(super) struct Outbox {
    bytes: Vec<u8>,
    waiting: Vec<Waiting>,
    /// Datagrams from this length on were refused by the link.
    cut_from_bytes: usize,
    faults: Option<Faults>,
    held: Vec<Held>,
    recorder: Option<Arc<Recorder>>,
}

/// The CRC's view of a path.
pub(super) fn flow(path: Path, src_port: u16) -> icrc::Flow {
    let canonical = |address: Ipv6Addr| address.to_canonical();
    icrc::Flow { src: canonical(path.src), dst: canonical(path.dst), src_port, dst_port: UDP_PORT }
}

impl Outbox {
    pub(super) fn new(faults: Option<Faults>, recorder: Option<Arc<Recorder>>) -> Self {
        Self {
            bytes: Vec::with_capacity(2 * BATCH * DATAGRAM_BYTES_MAX),
            waiting: Vec::with_capacity(2 * BATCH),
            cut_from_bytes: usize::MAX,
            faults,
            held: Vec::new(),
            recorder,
        }
    }

    /// Adds a packet, whose payload of `payload_bytes` is what `gather` appends.
    ///
    /// # Errors
    /// If `gather` fails; then nothing is added.
    pub(super) fn add(
        &mut self,
        socket: &Socket,
        path: Path,
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
        self.waiting.push(Waiting { path, at, len_bytes, may_be_cut });
        self.seal_last(socket);
        Ok(())
    }

    fn seal_last(&mut self, socket: &Socket) {
        if let Some(Waiting { path, at, len_bytes, may_be_cut }) = self.waiting.last() {
            let src_port = if *may_be_cut { socket.fragments_port } else { UDP_PORT };
            icrc::seal(&flow(*path, src_port), &mut self.bytes[*at..][..*len_bytes]);
        }
    }

    /// What packets are recorded by, if that is asked for.
    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_deref()
    }

    /// Whether a batch is full.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= BATCH
    }

    /// Sends everything that waits.
    pub(super) fn flush(&mut self, socket: &Socket, counters: &PortCounters, now_ns: u64) {
        if self.faults.is_some() {
            self.misfortune(counters, now_ns);
        }
        let mut done = 0;
        while let Some(first) = self.waiting.get(done).copied() {
            let alike = self.waiting[done..].iter().take_while(|next| next.may_be_cut == first.may_be_cut);
            let datagrams = alike.map(|next| (next.path, &self.bytes[next.at..][..next.len_bytes]));
            match socket.send(datagrams, first.may_be_cut) {
                Sent::Some(sent) => {
                    self.record(&self.waiting[done..][..sent], socket);
                    counters.packets_sent.add(sent as u64);
                    done += sent.max(1);
                }
                Sent::TooLong if !first.may_be_cut => {
                    self.cut_from_bytes = self.cut_from_bytes.min(first.len_bytes);
                    self.waiting[done].may_be_cut = true;
                    let datagram = &mut self.bytes[first.at..][..first.len_bytes];
                    // What a fault has turned stays wrong.
                    if icrc::is_sound(&flow(first.path, UDP_PORT), datagram) {
                        icrc::seal(&flow(first.path, socket.fragments_port), datagram);
                    }
                }
                Sent::TooLong | Sent::Lost => {
                    counters.packets_not_sent.increment();
                    done += 1;
                }
            }
        }
        self.waiting.clear();
        self.bytes.clear();
    }

    /// Records packets that were sent, if that is asked for.
    fn record(&self, sent: &[Waiting], socket: &Socket) {
        let Some(recorder) = &self.recorder else { return };
        let mut batch = recorder.batch();
        for Waiting { path, at, len_bytes, may_be_cut } in sent {
            let src_port = if *may_be_cut { socket.fragments_port } else { UDP_PORT };
            let datagram = &self.bytes[*at..][..*len_bytes];
            batch.datagram(Way::Net, Direction::Out, &flow(*path, src_port), datagram);
        }
    }

    /// Lets faults happen to what waits, and adds what was held up long enough.
    #[cold]
    fn misfortune(&mut self, counters: &PortCounters, now_ns: u64) {
        let Some(mut faults) = self.faults.take() else { return };
        for packet in take(&mut self.waiting) {
            let Fate { is_lost, is_doubled, turned, held_ns } = faults.judge(now_ns);
            if is_lost || is_doubled || turned.is_some() || held_ns > 0 {
                counters.faults.increment();
            }
            let Waiting { path, at, len_bytes, may_be_cut } = packet;
            let datagram = &mut self.bytes[at..][..len_bytes];
            if let Some(turned) = turned {
                let bit = (u64::from(turned) * (len_bytes as u64 * 8)) >> 32;
                datagram[bit as usize / 8] ^= 1 << (bit % 8);
            }
            if held_ns > 0 && !is_lost {
                let until_ns = now_ns + held_ns;
                self.held.push(Held { until_ns, path, may_be_cut, datagram: datagram.to_vec() });
            }
            let copies = usize::from(!is_lost && held_ns == 0) + usize::from(!is_lost && is_doubled);
            self.waiting.extend(std::iter::repeat_n(packet, copies));
        }
        for held in self.held.extract_if(.., |held| held.until_ns <= now_ns) {
            let (at, len_bytes) = (self.bytes.len(), held.datagram.len());
            self.bytes.extend_from_slice(&held.datagram);
            self.waiting.push(Waiting { path: held.path, at, len_bytes, may_be_cut: held.may_be_cut });
        }
        self.faults = Some(faults);
    }

    /// When something that a fault holds up must be sent.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.held.iter().map(|held| held.until_ns).min()
    }
}
