//! The program's handle of a completion queue, and the order in which it polls its queue pairs.

use std::any::Any;
use std::sync::Arc;

use farcall_verbs::{Notify, RawCq, Result, Wc};

use crate::shm_transport::cq::{AttachedPair, Attachment, COMPLETIONS_PER_QUANTUM, CqCore, Source};
use crate::shm_transport::qp::QueuePair;
use crate::shm_transport::{ObjectReservation, ShmTransport};

/// Number of empty polls of queue pairs, per poll of the completion queue, that is acceptable. Bits are only cleared if
/// it is exceeded.
const EMPTY_POLLS_FREE: u32 = 16;

/// Number of empty polls of queue pairs after which the bits of idle ones are cleared. They cost a few times as much as
/// the clearing, with its barrier and with the setting of bits by producers that become active again.
const EMPTY_POLLS_MAX: u32 = 2048;

/// Maximum number of other completions that may precede deferred failures. It suffices for what peers did before they
/// exited, and bounds the delay regardless of the load.
const PRECEDING_MAX: usize = 1024;

/// A connected queue pair, and the kinds of completion that it delivers.
struct PolledPair {
    qp: Arc<QueuePair>,
    sends: bool,
    receives: bool,
}

impl PolledPair {
    /// Returns the queue pair in the form in which it is polled without dynamic dispatch.
    fn of(AttachedPair { qp, sends, receives }: AttachedPair) -> Self {
        let qp: Arc<dyn Any + Send + Sync> = qp;
        Self { qp: qp.downcast().expect("only this type is attached"), sends, receives }
    }
}

/// The program's handle of a completion queue.
pub(crate) struct Cq {
    pub(crate) core: Arc<CqCore>,
    epoch: u64,
    /// Attached producers by bit: connected queue pairs, which are the majority, in `pairs`, others in `sources`.
    pairs: Vec<Option<PolledPair>>,
    sources: Vec<Option<Arc<dyn Source>>>,
    /// Queue pairs that had completions since bits were last cleared.
    active: Vec<u64>,
    /// Bit at which the next poll starts, for fairness.
    start: usize,
    /// Number of empty polls of queue pairs: `empty_polls` in this poll, `empty_polls_total` since bits were last
    /// cleared.
    empty_polls: u32,
    empty_polls_total: u32,
    /// Buffer for [`Cq::clear_idle`].
    withdrawn: Vec<u64>,
    /// Number of completions delivered while failures were deferred.
    preceding: usize,
    shm: Arc<ShmTransport>,
    /// `true` if a source used up its quantum. The poll then continues, because programs treat a partly filled poll as
    /// the last one.
    has_more: bool,
    _reservation: ObjectReservation,
}

impl Cq {
    pub(crate) fn new(shm: &Arc<ShmTransport>, core: Arc<CqCore>, reservation: ObjectReservation) -> Self {
        Self {
            shm: shm.clone(),
            core,
            epoch: u64::MAX,
            pairs: Vec::new(),
            sources: Vec::new(),
            active: Vec::new(),
            start: 0,
            empty_polls: 0,
            empty_polls_total: 0,
            withdrawn: Vec::new(),
            preceding: 0,
            has_more: false,
            _reservation: reservation,
        }
    }

    #[cold]
    fn refresh(&mut self) -> Result<()> {
        let (epoch, attached) = self.core.attached()?;
        self.epoch = epoch;
        self.pairs.clear();
        self.sources.clear();
        self.active.resize(attached.len().div_ceil(64), 0);
        self.withdrawn.resize(self.active.len(), 0);
        for attachment in attached {
            let (pair, source) = match attachment {
                Attachment::Free | Attachment::Reserved => (None, None),
                Attachment::Pair(pair) => (Some(PolledPair::of(pair)), None),
                Attachment::Source(source) => (None, Some(source)),
            };
            self.pairs.push(pair);
            self.sources.push(source);
        }
        self.start = 0;
        Ok(())
    }

    /// Polls the queue pairs of one bitmap word whose index is in `among`. Returns the number of completions.
    #[inline]
    fn poll_word(&mut self, word: usize, among: u64, wc: &mut [Wc]) -> usize {
        let mut bits = self.core.readiness().bits(word) & among;
        let mut filled = 0;
        while bits != 0 && filled < wc.len() {
            let bit = bits.trailing_zeros();
            bits &= bits - 1;
            let at = word * 64 + bit as usize;
            if let Some(Some(next)) = self.pairs.get(word * 64 + bits.trailing_zeros() as usize) {
                next.qp.prefetch_for_poll();
            }
            let delivered = match self.pairs.get(at) {
                Some(Some(entry)) => entry.qp.poll(entry.sends, entry.receives, &mut wc[filled..]),
                _ => self.poll_source(at, &mut wc[filled..]),
            };
            if delivered > 0 {
                self.active[word] |= 1 << bit;
                filled += delivered;
                self.start = at + 1;
            } else {
                self.empty_polls += 1;
            }
        }
        filled
    }

    /// Delivers the failures of queue pairs in error, when no queue pair has another completion.
    #[cold]
    fn poll_failures(&self, wc: &mut [Wc]) -> usize {
        let mut filled = 0;
        for (pair, source) in self.pairs.iter().zip(&self.sources) {
            if filled == wc.len() {
                break;
            }
            filled += match (pair, source) {
                (Some(entry), _) => entry.qp.poll_failures(entry.sends, entry.receives, &mut wc[filled..]),
                (_, Some(source)) => source.poll_failures(&mut wc[filled..]),
                _ => 0,
            };
        }
        filled
    }

    #[inline(never)]
    fn poll_source(&mut self, at: usize, wc: &mut [Wc]) -> usize {
        let Some(Some(source)) = self.sources.get(at) else { return 0 };
        let turn = wc.len().min(COMPLETIONS_PER_QUANTUM);
        let filled = source.poll(&mut wc[..turn]);
        self.has_more |= filled == COMPLETIONS_PER_QUANTUM;
        filled
    }

    /// Gives every producer one quantum: from `start` to the end of its word, the other words in order, then the rest
    /// of the first word.
    #[inline]
    fn poll_round(&mut self, wc: &mut [Wc]) -> usize {
        if self.start >= self.pairs.len() {
            self.start = 0;
        }
        let (first, later) = (self.start / 64, !0 << (self.start % 64));
        let mut filled = self.poll_word(first, later, wc);
        for word in (first + 1..self.active.len()).chain(0..first) {
            if self.core.readiness().bits(word) != 0 {
                filled += self.poll_word(word, !0, &mut wc[filled..]);
            }
        }
        if later != !0 {
            filled += self.poll_word(first, !later, &mut wc[filled..]);
        }
        filled
    }

    /// Clears the bits of idle queue pairs, so that a poll of many queue pairs reads only a few words.
    #[cold]
    fn clear_idle(&mut self) {
        let Self { core, pairs, sources, active, withdrawn, .. } = self;
        core.readiness()
            .clear_idle(active, withdrawn, |bit| may_have_completions(pairs, sources, bit as usize));
    }
}

/// Returns whether a poll may find a completion at a bit.
fn may_have_completions(
    pairs: &[Option<PolledPair>],
    sources: &[Option<Arc<dyn Source>>],
    at: usize,
) -> bool {
    match (pairs.get(at), sources.get(at)) {
        (Some(Some(pair)), _) => pair.qp.may_have_completions(pair.sends, pair.receives),
        (_, Some(Some(source))) => source.may_have_completions(),
        _ => false,
    }
}

impl RawCq for Cq {
    fn id(&self) -> u32 {
        self.core.id()
    }

    #[inline]
    fn poll(&mut self, wc: &mut [Wc]) -> Result<usize> {
        if self.core.epoch() != self.epoch {
            self.refresh()?;
        }
        if self.active.is_empty() || wc.is_empty() {
            return Ok(0);
        }
        let mut filled = 0;
        if self.preceding >= PRECEDING_MAX {
            self.preceding = 0;
            filled = self.poll_failures(wc);
        }
        filled += self.poll_round(&mut wc[filled..]);
        while std::mem::take(&mut self.has_more) && filled < wc.len() {
            filled += self.poll_round(&mut wc[filled..]);
        }
        if filled > 0 {
            if self.core.has_deferred_failures() {
                self.preceding += filled;
                self.core.deliver_deferred_failures();
            }
        } else if self.core.take_deferred_failures() {
            self.preceding = 0;
            filled = self.poll_failures(wc);
        }
        let empty_polls = std::mem::take(&mut self.empty_polls);
        if empty_polls > EMPTY_POLLS_FREE {
            self.empty_polls_total += empty_polls;
            if self.empty_polls_total >= EMPTY_POLLS_MAX {
                self.empty_polls_total = 0;
                self.clear_idle();
            }
        }
        Ok(filled)
    }

    fn req_notify(&mut self, notify: Notify) -> Result<()> {
        self.core.request_event(notify)?;
        if let Some(remote) = self.shm.remote.get() {
            remote.on_cq_sleep();
        }
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
