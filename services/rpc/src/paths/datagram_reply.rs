//! Responses by SEND of a datagram, from the one queue pair of the server thread (HERD, section 4.3).
//!
//! A datagram may be lost, duplicated, or overtake another one. Its number identifies the message that it responds to,
//! and its tail proves that the server of this session sent it. Lost responses are requested again, as over UC.

use farcall_link::{Datagrams, Geometry, LocalSlice, RegionId};
use farcall_verbs::Error;

use super::ResponsePath;
use crate::caller::{CallerState, Look, Source};
use crate::config::CallerConfig;
use crate::counters::Counters;
use crate::inbox::Inbox;
use crate::responder::{ServerEnd, ThreadPair};
use crate::wire::{FirstWord, Mode, ResponseHeader, Seq, Slots};

/// The server sends every result as a datagram.
#[derive(Debug)]
pub struct DatagramReply;

impl ResponsePath for DatagramReply {
    const AXIS: farcall_link::ResponsePath = farcall_link::ResponsePath::Datagram;
    const FETCHES: bool = false;
    const SENDS: bool = true;

    fn new(_: &CallerConfig) -> Self {
        Self
    }

    #[inline]
    fn mode(&mut self, _method: u16) -> Mode {
        Mode::Reply
    }

    #[inline]
    fn receive(&mut self, caller: &mut CallerState) -> bool {
        caller.receive_datagram(self)
    }

    #[inline]
    fn can_respond(end: &ServerEnd, thread_pair: &ThreadPair, seq: Seq) -> bool {
        thread_pair.has_room_for(end.ticket_of(seq))
    }

    #[inline]
    fn respond(
        end: &mut ServerEnd,
        thread_pair: &mut ThreadPair,
        seq: Seq,
        _: Mode,
        _push: bool,
        counters: &Counters,
    ) {
        let (Some(len_bytes), Some(to)) = (end.response_bytes(seq), &mut end.reply_to) else { return };
        let piece =
            LocalSlice { region: to.results_id, offset: end.session.responses.offset(seq), len_bytes };
        counters.replied.increment();
        if let Some(ticket) = thread_pair.send(piece, to) {
            end.tickets[end.session.responses.index(seq)] = ticket;
        }
    }
}

/// The client's queue pair for datagrams, and the responses received by it.
pub(crate) struct Arrivals {
    pub pair: Datagrams,
    receives: Inbox,
    /// Indexed by response slot: responses that wait until their message is the oldest.
    waiting: Box<[Option<Arrived>]>,
}

/// A response that has been checked.
struct Arrived {
    receive: usize,
    header: ResponseHeader,
}

/// Length of a receive in bytes.
const fn receive_bytes(geometry: Geometry) -> usize {
    Datagrams::HEADER_BYTES + geometry.response_slot_bytes as usize
}

impl Arrivals {
    /// Number of receives: one for each message in flight, and as many for duplicates.
    pub const fn receives(geometry: Geometry) -> usize {
        2 * geometry.window as usize
    }

    /// Length of all receives in bytes.
    pub const fn bytes(geometry: Geometry) -> usize {
        Self::receives(geometry) * receive_bytes(geometry)
    }

    /// Posts the receives in a region of the queue pair, and enables reception of datagrams.
    ///
    /// # Errors
    /// Returns the queue pair's error if it rejects the receives.
    pub fn start(mut pair: Datagrams, region: RegionId, geometry: Geometry) -> Result<Self, Error> {
        let bytes = receive_bytes(geometry) as u32;
        let receives = Inbox::of_slots(&mut pair, region, bytes, Self::receives(geometry))?;
        pair.start()?;
        Ok(Self { pair, receives, waiting: (0..geometry.window).map(|_| None).collect() })
    }

    /// Returns the offset, in the region, of the datagram of a receive.
    const fn offset(&self, receive: usize) -> usize {
        self.receives.offset(receive) + Datagrams::HEADER_BYTES
    }

    /// Stores the response to message `seq`. Returns `false` if it is a duplicate.
    fn put(&mut self, slots: &Slots, seq: Seq, arrived: Arrived) -> bool {
        let place = &mut self.waiting[slots.index(seq)];
        if place.is_some() {
            return false;
        }
        *place = Some(arrived);
        true
    }

    fn give_back(&mut self, receive: usize) {
        self.receives.post(&mut self.pair, receive);
    }
}

/// The client's part.
impl CallerState {
    /// Handles a received datagram. The first response to a message in flight is stored until its message is the
    /// oldest; otherwise the receive is posted again.
    #[inline]
    pub(crate) fn datagram_arrived(&mut self, receive: usize, len_bytes: u32) {
        let is_kept = self.keep_datagram(receive, len_bytes as usize);
        if let (false, Some(arrivals)) = (is_kept, self.arrivals()) {
            arrivals.give_back(receive);
        }
    }

    fn keep_datagram(&mut self, receive: usize, len_bytes: usize) -> bool {
        let Some(end) = &self.end else { return false };
        let Some(arrivals) = &end.arrivals else { return false };
        let at = arrivals.offset(receive);
        let bytes = len_bytes.saturating_sub(Datagrams::HEADER_BYTES);
        // Bytes of the receive beyond the datagram's length are those of an earlier datagram, where the tail must not
        // be found.
        let seq = FirstWord::decode(end.replies.load_acquire(at)).map(|first| first.seq);
        let looked = seq.map(|seq| (seq, self.look(seq, Source::Sent { at }, bytes)));
        match looked {
            Some((seq, Look::Whole(header))) => {
                let is_first =
                    self.messages.contains(seq) && self.put_arrived(seq, Arrived { receive, header });
                if !is_first {
                    self.counters.repeated.increment();
                    // Over UD a duplicate is also the server's announcement of a deferred answer.
                    self.told_again();
                }
                is_first
            }
            Some((seq, Look::Corrupt)) => {
                if self.messages.contains(seq) {
                    self.messages.at(seq).corrupt_looks += 1;
                }
                false
            }
            _ => {
                self.counters.strangers.increment();
                false
            }
        }
    }

    fn put_arrived(&mut self, seq: Seq, arrived: Arrived) -> bool {
        let Some(end) = &mut self.end else { return false };
        let slots = end.responses;
        end.arrivals.as_mut().is_some_and(|arrivals| arrivals.put(&slots, seq, arrived))
    }

    #[inline]
    fn arrivals(&mut self) -> Option<&mut Arrivals> {
        self.end.as_mut()?.arrivals.as_mut()
    }

    /// Delivers the oldest message's response if it has arrived. Returns whether it did.
    #[inline]
    pub(crate) fn receive_datagram<P: ResponsePath>(&mut self, path: &mut P) -> bool {
        let seq = self.messages.head;
        let Some(end) = &mut self.end else { return false };
        let Some(arrivals) = &mut end.arrivals else { return false };
        let Some(Arrived { receive, header }) = arrivals.waiting[end.responses.index(seq)].take() else {
            return false;
        };
        let at = arrivals.offset(receive);
        self.counters.replied.increment();
        self.take(path, seq, &header, Source::Sent { at });
        if let Some(arrivals) = self.arrivals() {
            arrivals.give_back(receive);
        }
        true
    }
}
