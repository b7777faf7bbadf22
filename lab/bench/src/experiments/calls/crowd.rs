//! Requesters that each have one call under way, to a responder that they choose at random: over connections of their
//! own to all of them, or through a dispatcher.

use super::callee::Request;
use super::client::WRONG_ECHO;
use super::{CallTask, Callee};
use crate::experiments::ExperimentError;
use farcall_link::SplitMix64;
use farcall_rpc::{AnyCaller, ClientOf, Dispatcher, Requester};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Whom requesters call, and over what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Topology {
    /// One server thread, each over a connection of its own.
    Private,
    /// So many server threads, in turn: each connection one.
    Spread {
        /// How many.
        responders: u16,
    },
    /// Each so many server threads, over a connection of its own to each.
    PrivateToMany {
        /// How many.
        responders: u16,
    },
    /// So many server threads, all through one dispatcher.
    Dispatcher {
        /// How many.
        responders: u16,
        /// Connections of the dispatcher to each.
        connections: u16,
    },
}

impl Topology {
    /// Server threads that are called.
    pub(crate) const fn responders(self) -> u16 {
        match self {
            Self::Private => 1,
            Self::Spread { responders }
            | Self::PrivateToMany { responders }
            | Self::Dispatcher { responders, .. } => responders,
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let responders = self.responders();
        if responders > 1 {
            write!(f, ", {responders} responders")?;
        }
        match self {
            Self::PrivateToMany { .. } => f.write_str(", each to all"),
            Self::Private | Self::Spread { .. } => Ok(()),
            Self::Dispatcher { connections: 1, .. } => f.write_str(", by a dispatcher"),
            Self::Dispatcher { connections, .. } => {
                write!(f, ", by a dispatcher over {connections} connections")
            }
        }
    }
}

/// What calls go over.
pub(super) trait Way {
    /// Begins the requester's call.
    fn begin(
        &mut self,
        requester: usize,
        to: u16,
        method: u16,
        request: &[u8],
    ) -> Result<(), ExperimentError>;

    /// Whether the requester's call has ended, as it should.
    fn has_ended(&mut self, requester: usize, to: u16, callee: Callee) -> Result<bool, ExperimentError>;

    /// Nothing has ended.
    fn idle(&self) {}
}

/// Connections of each requester, one to each responder.
pub(super) struct Connections<'a, C: AnyCaller + ?Sized> {
    pub(super) clients: &'a mut [ClientOf<C>],
    pub(super) responders: u16,
}

impl<C: AnyCaller + ?Sized> Connections<'_, C> {
    fn client(&mut self, requester: usize, to: u16) -> &mut ClientOf<C> {
        &mut self.clients[requester * usize::from(self.responders) + usize::from(to)]
    }
}

impl<C: AnyCaller + ?Sized> Way for Connections<'_, C> {
    fn begin(
        &mut self,
        requester: usize,
        to: u16,
        method: u16,
        request: &[u8],
    ) -> Result<(), ExperimentError> {
        let client = self.client(requester, to);
        client.submit(method, request)?;
        client.flush();
        Ok(())
    }

    fn has_ended(&mut self, requester: usize, to: u16, callee: Callee) -> Result<bool, ExperimentError> {
        let client = self.client(requester, to);
        client.progress();
        let Some(completion) = client.next_completion() else { return Ok(false) };
        if callee.is_right(0, completion.result?) { Ok(true) } else { Err(WRONG_ECHO.into()) }
    }
}

/// Local mailboxes of a dispatcher.
pub(super) struct Mailboxes {
    requesters: Vec<Requester>,
    /// Connections to each responder.
    connections: u16,
    _dispatcher: Dispatcher,
}

impl Mailboxes {
    pub(super) fn new(
        dispatcher: Dispatcher,
        requesters: u32,
        connections: u16,
    ) -> Result<Self, ExperimentError> {
        let requesters = (0..requesters).map(|_| dispatcher.requester(1)).collect::<Result<_, _>>()?;
        Ok(Self { requesters, connections, _dispatcher: dispatcher })
    }
}

impl Way for Mailboxes {
    fn begin(
        &mut self,
        requester: usize,
        to: u16,
        method: u16,
        request: &[u8],
    ) -> Result<(), ExperimentError> {
        let connection = to * self.connections + (requester % usize::from(self.connections)) as u16;
        self.requesters[requester].submit(connection, method, request)?;
        Ok(())
    }

    fn has_ended(&mut self, requester: usize, _: u16, callee: Callee) -> Result<bool, ExperimentError> {
        let Some(completion) = self.requesters[requester].poll() else { return Ok(false) };
        if callee.is_right(0, completion.result?) { Ok(true) } else { Err(WRONG_ECHO.into()) }
    }

    /// The dispatcher's thread may need this processor.
    fn idle(&self) {
        std::thread::yield_now();
    }
}

/// All requesters.
pub(super) struct Crowd<W> {
    way: W,
    callee: Callee,
    request: Request,
    random: SplitMix64,
    /// Whom each calls now.
    calls: Vec<Option<u16>>,
    /// Calls under way at each responder.
    under_way: Vec<u32>,
    /// Ended beyond the rounds that were counted.
    ahead: usize,
    ended: u64,
    /// Of all endings, the sum of the calls that were under way at the responder.
    taken: u64,
}

impl<W: Way> Crowd<W> {
    pub(super) fn new(way: W, task: &CallTask, seed: u64) -> Self {
        Self {
            way,
            callee: task.callee,
            request: Request::new(task.callee),
            random: SplitMix64::new(seed),
            calls: vec![None; task.connections as usize],
            under_way: vec![0; task.topology.responders().into()],
            ahead: 0,
            ended: 0,
            taken: 0,
        }
    }

    /// Goes on until as many calls have ended as there are requesters; each that ends is followed by another.
    pub(super) fn round(&mut self) -> Result<(), ExperimentError> {
        while self.ahead < self.calls.len() {
            let before = self.ahead;
            for requester in 0..self.calls.len() {
                self.look(requester)?;
            }
            if self.ahead == before {
                self.way.idle();
            }
        }
        self.ahead -= self.calls.len();
        Ok(())
    }

    fn look(&mut self, requester: usize) -> Result<(), ExperimentError> {
        if let Some(to) = self.calls[requester] {
            if !self.way.has_ended(requester, to, self.callee)? {
                return Ok(());
            }
            let at_responder = &mut self.under_way[usize::from(to)];
            (self.ended, self.taken) = (self.ended + 1, self.taken + u64::from(*at_responder));
            *at_responder -= 1;
            self.ahead += 1;
        }
        let to = (self.random.next_u64() % self.under_way.len() as u64) as u16;
        self.way.begin(requester, to, self.callee.method(), self.request.numbered(0))?;
        self.under_way[usize::from(to)] += 1;
        self.calls[requester] = Some(to);
        Ok(())
    }

    /// Calls that have ended.
    pub(super) fn ended(&self) -> u64 {
        self.ended
    }

    /// Of the mailboxes of a responder that answers, one for each requester, the share in which no request is under way.
    pub(super) fn empty_share(&self) -> Option<f64> {
        let mailboxes = self.ended * self.calls.len() as u64;
        (mailboxes > 0).then(|| 1.0 - self.taken as f64 / mailboxes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Responders that end one call a look, in the order in which they began.
    struct Orders {
        begun: VecDeque<usize>,
        to: Vec<u64>,
    }

    impl Way for Orders {
        fn begin(
            &mut self,
            requester: usize,
            to: u16,
            _: u16,
            request: &[u8],
        ) -> Result<(), ExperimentError> {
            assert_eq!(request.len(), 64);
            self.begun.push_back(requester);
            self.to[usize::from(to)] += 1;
            Ok(())
        }

        fn has_ended(&mut self, requester: usize, _: u16, _: Callee) -> Result<bool, ExperimentError> {
            let is_next = self.begun.front() == Some(&requester);
            if is_next {
                self.begun.pop_front();
            }
            Ok(is_next)
        }
    }

    #[test]
    fn each_has_one_call_under_way_and_all_responders_are_called() {
        let (requesters, responders) = (12, 4);
        let topology = Topology::PrivateToMany { responders };
        let callee = Callee::Block { len_bytes: 64 };
        let task = CallTask { connections: requesters, topology, callee, ..CallTask::small("server-reply") };
        let orders = Orders { begun: VecDeque::new(), to: vec![0; responders.into()] };
        let mut crowd = Crowd::new(orders, &task, 7);
        for _ in 0..1_000 {
            crowd.round().unwrap();
            assert_eq!(crowd.way.begun.len(), requesters as usize);
            assert_eq!(crowd.under_way.iter().sum::<u32>(), requesters);
        }
        let ended = crowd.ended();
        assert!((12_000..12_012).contains(&ended), "{ended}");
        assert!(crowd.way.to.iter().all(|calls| calls.abs_diff(3_000) < 300), "{:?}", crowd.way.to);
        // The call that ends, and a quarter of the other eleven.
        let expected = 1.0 - (1.0 + 11.0 / 4.0) / 12.0;
        assert!((crowd.empty_share().unwrap() - expected).abs() < 0.02, "{:?}", crowd.empty_share());
    }
}
