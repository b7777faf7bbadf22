//! The program's handle of a completion queue, and the order in which it polls its queue pairs.

use std::any::Any;
use std::sync::Arc;

use farcall_verbs::{Notify, RawCq, Result, Wc};

use crate::shm_transport::cq::{AttachedPair, Attachment, COMPLETIONS_PER_QUANTUM, CqCore, Source};
use crate::shm_transport::{ObjectReservation, ShmTransport};

/// Number of empty polls of queue pairs, per poll of the completion queue, that is acceptable. Bits are only cleared if
/// it is exceeded.
const ALWAYS_SCANNED: u32 = 16;

/// Number of empty polls of queue pairs after which the bits of idle ones are cleared. They cost a few times as much as
/// the clearing, with its barrier and with the setting of bits by producers that become active again.
const FRUITLESS_MAX: u32 = 2048;

/// Maximum number of other completions that may precede deferred failures. It suffices for what peers did before they
/// exited, and bounds the delay regardless of the load.
const OVERTAKING_MAX: usize = 1024;

/// The program's handle of a completion queue.
pub(crate) struct Cq {
    pub(crate) core: Arc<CqCore>,
    epoch: u64,
    /// Attached producers by bit: connected queue pairs, which are the majority, in `pairs`, others in `sources`.
    pairs: Vec<Option<AttachedPair>>,
    sources: Vec<Option<Arc<dyn Source>>>,
    /// Queue pairs that had completions since bits were last cleared.
    active: Vec<u64>,
    /// Bit at which the next poll starts, for fairness.
    start: usize,
    /// Number of empty polls of queue pairs: `looks` in this poll, `fruitless` since bits were last cleared.
    looks: u32,
    fruitless: u32,
    /// Buffer for [`Cq::withdraw_quiet`].
    withdrawn: Vec<u64>,
    /// Number of completions delivered while failures were deferred.
    overtaking: usize,
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
            looks: 0,
            fruitless: 0,
            withdrawn: Vec::new(),
            overtaking: 0,
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
                Attachment::Pair(pair) => (Some(pair), None),
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
        let mut taken = 0;
        while bits != 0 && taken < wc.len() {
            let bit = bits.trailing_zeros();
            bits &= bits - 1;
            let at = word * 64 + bit as usize;
            if let Some(Some(next)) = self.pairs.get(word * 64 + bits.trailing_zeros() as usize) {
                next.qp.prefetch_for_poll();
            }
            let got = match self.pairs.get(at) {
                Some(Some(entry)) => entry.qp.poll(entry.sends, entry.receives, &mut wc[taken..]),
                _ => self.poll_source(at, &mut wc[taken..]),
            };
            if got > 0 {
                self.active[word] |= 1 << bit;
                taken += got;
                self.start = at + 1;
            } else {
                self.looks += 1;
            }
        }
        taken
    }

    /// Delivers the failures of queue pairs in error, when no queue pair has another completion.
    #[cold]
    fn poll_failures(&self, wc: &mut [Wc]) -> usize {
        let mut taken = 0;
        for (pair, source) in self.pairs.iter().zip(&self.sources) {
            if taken == wc.len() {
                break;
            }
            taken += match (pair, source) {
                (Some(entry), _) => entry.qp.poll_failures(entry.sends, entry.receives, &mut wc[taken..]),
                (_, Some(source)) => source.poll_failures(&mut wc[taken..]),
                _ => 0,
            };
        }
        taken
    }

    #[inline(never)]
    fn poll_source(&mut self, at: usize, wc: &mut [Wc]) -> usize {
        let Some(Some(source)) = self.sources.get(at) else { return 0 };
        let turn = wc.len().min(COMPLETIONS_PER_QUANTUM);
        let taken = source.poll(&mut wc[..turn]);
        self.has_more |= taken == COMPLETIONS_PER_QUANTUM;
        taken
    }

    /// Gives every producer one quantum: from `start` to the end of its word, the other words in order, then the rest
    /// of the first word.
    #[inline]
    fn poll_round(&mut self, wc: &mut [Wc]) -> usize {
        if self.start >= self.pairs.len() {
            self.start = 0;
        }
        let (first, later) = (self.start / 64, !0 << (self.start % 64));
        let mut taken = self.poll_word(first, later, wc);
        for word in (first + 1..self.active.len()).chain(0..first) {
            if self.core.readiness().bits(word) != 0 {
                taken += self.poll_word(word, !0, &mut wc[taken..]);
            }
        }
        if later != !0 {
            taken += self.poll_word(first, !later, &mut wc[taken..]);
        }
        taken
    }

    /// Clears the bits of idle queue pairs, so that a poll of many queue pairs reads only a few words.
    #[cold]
    fn withdraw_quiet(&mut self) {
        let Self { core, pairs, sources, active, withdrawn, .. } = self;
        core.readiness()
            .withdraw_quiet(active, withdrawn, |bit| may_have_completions(pairs, sources, bit as usize));
    }
}

/// Returns whether a poll may find a completion at a bit.
fn may_have_completions(
    pairs: &[Option<AttachedPair>],
    sources: &[Option<Arc<dyn Source>>],
    at: usize,
) -> bool {
    match (pairs.get(at), sources.get(at)) {
        (Some(Some(pair)), _) => pair.may_have_completions(),
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
        let mut taken = 0;
        if self.overtaking >= OVERTAKING_MAX {
            self.overtaking = 0;
            taken = self.poll_failures(wc);
        }
        taken += self.poll_round(&mut wc[taken..]);
        while std::mem::take(&mut self.has_more) && taken < wc.len() {
            taken += self.poll_round(&mut wc[taken..]);
        }
        if taken > 0 {
            if self.core.has_deferred_failures() {
                self.overtaking += taken;
                self.core.deliver_deferred_failures();
            }
        } else if self.core.take_deferred_failures() {
            self.overtaking = 0;
            taken = self.poll_failures(wc);
        }
        let looks = std::mem::take(&mut self.looks);
        if looks > ALWAYS_SCANNED {
            self.fruitless += looks;
            if self.fruitless >= FRUITLESS_MAX {
                self.fruitless = 0;
                self.withdraw_quiet();
            }
        }
        Ok(taken)
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
