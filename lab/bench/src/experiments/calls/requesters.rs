//! Requesters that each have one outstanding call, to a responder chosen at random: over connections of their own to
//! all responders, or through a dispatcher.

use super::callee::{Request, WRONG_ECHO};
use super::{CallTask, Callee};
use crate::experiments::ExperimentError;
use farcall::rpc::{Dispatcher, Requester};
use farcall_link::SplitMix64;
use farcall_rpc::{AnyCaller, ClientOf};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Connections between requesters and responders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Topology {
    /// All requesters call one server thread, each over a connection of its own.
    Private,
    /// Requesters are assigned to the server threads in turn, with one connection each.
    Spread {
        /// Number of server threads.
        responders: u16,
    },
    /// Each requester calls all server threads, over one connection of its own to each.
    PrivateToMany {
        /// Number of server threads.
        responders: u16,
    },
    /// All requesters call all server threads through one dispatcher.
    Dispatcher {
        /// Number of server threads.
        responders: u16,
        /// Connections of the dispatcher to each server thread.
        connections: u16,
    },
}

impl Topology {
    /// Returns the number of server threads that are called.
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

/// Transport of the calls.
pub(super) trait CallTransport {
    /// Begins the requester's call.
    fn begin(
        &mut self,
        requester: usize,
        to: u16,
        method: u16,
        request: &[u8],
    ) -> Result<(), ExperimentError>;

    /// Returns whether the requester's call has completed. A wrong reply is an error.
    fn has_ended(&mut self, requester: usize, to: u16, callee: Callee) -> Result<bool, ExperimentError>;

    /// Called when no call has completed.
    fn idle(&self) {}
}

/// Connections of the requesters, one to each responder.
pub(super) struct Connections<'a, C: AnyCaller + ?Sized> {
    pub(super) clients: &'a mut [ClientOf<C>],
    pub(super) responders: u16,
}

impl<C: AnyCaller + ?Sized> Connections<'_, C> {
    fn client(&mut self, requester: usize, to: u16) -> &mut ClientOf<C> {
        &mut self.clients[requester * usize::from(self.responders) + usize::from(to)]
    }
}

impl<C: AnyCaller + ?Sized> CallTransport for Connections<'_, C> {
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
    /// Number of connections to each responder.
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

impl CallTransport for Mailboxes {
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

    /// Yields the processor, which the dispatcher's thread may need.
    fn idle(&self) {
        std::thread::yield_now();
    }
}

/// All requesters of a client.
pub(super) struct RequesterPool<W> {
    transport: W,
    callee: Callee,
    request: Request,
    random: SplitMix64,
    /// Responder that each requester currently calls.
    calls: Vec<Option<u16>>,
    /// Outstanding calls at each responder.
    under_way: Vec<u32>,
    /// Calls completed in excess of the counted rounds.
    ahead: usize,
    ended: u64,
    /// Sum over all completions of the calls that were outstanding at the responder.
    taken: u64,
}

impl<W: CallTransport> RequesterPool<W> {
    pub(super) fn new(transport: W, task: &CallTask, seed: u64) -> Self {
        Self {
            transport,
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

    /// Continues until as many calls have completed as there are requesters. Each completed call is followed by
    /// another.
    pub(super) fn round(&mut self) -> Result<(), ExperimentError> {
        while self.ahead < self.calls.len() {
            let before = self.ahead;
            for requester in 0..self.calls.len() {
                self.poll_requester(requester)?;
            }
            if self.ahead == before {
                self.transport.idle();
            }
        }
        self.ahead -= self.calls.len();
        Ok(())
    }

    fn poll_requester(&mut self, requester: usize) -> Result<(), ExperimentError> {
        if let Some(to) = self.calls[requester] {
            if !self.transport.has_ended(requester, to, self.callee)? {
                return Ok(());
            }
            let at_responder = &mut self.under_way[usize::from(to)];
            (self.ended, self.taken) = (self.ended + 1, self.taken + u64::from(*at_responder));
            *at_responder -= 1;
            self.ahead += 1;
        }
        let to = (self.random.next_u64() % self.under_way.len() as u64) as u16;
        self.transport.begin(requester, to, self.callee.method(), self.request.numbered(0))?;
        self.under_way[usize::from(to)] += 1;
        self.calls[requester] = Some(to);
        Ok(())
    }

    /// Returns the number of completed calls.
    pub(super) fn ended(&self) -> u64 {
        self.ended
    }

    /// Returns the share of a responder's mailboxes without an outstanding request at the time of a reply. A responder
    /// has one mailbox for each requester.
    pub(super) fn empty_share(&self) -> Option<f64> {
        let mailboxes = self.ended * self.calls.len() as u64;
        (mailboxes > 0).then(|| 1.0 - self.taken as f64 / mailboxes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Responders that complete one call per poll, in the order in which the calls began.
    struct Orders {
        begun: VecDeque<usize>,
        to: Vec<u64>,
    }

    impl CallTransport for Orders {
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
    fn keeps_one_call_per_requester_and_calls_all_responders() {
        let (requesters, responders) = (12, 4);
        let topology = Topology::PrivateToMany { responders };
        let callee = Callee::Block { len_bytes: 64 };
        let task = CallTask { connections: requesters, topology, callee, ..CallTask::small("server-reply") };
        let orders = Orders { begun: VecDeque::new(), to: vec![0; responders.into()] };
        let mut pool = RequesterPool::new(orders, &task, 7);
        for _ in 0..1_000 {
            pool.round().unwrap();
            assert_eq!(pool.transport.begun.len(), requesters as usize);
            assert_eq!(pool.under_way.iter().sum::<u32>(), requesters);
        }
        let ended = pool.ended();
        assert!((12_000..12_012).contains(&ended), "{ended}");
        assert!(pool.transport.to.iter().all(|calls| calls.abs_diff(3_000) < 300), "{:?}", pool.transport.to);
        // The completing call, and a quarter of the other eleven.
        let expected = 1.0 - (1.0 + 11.0 / 4.0) / 12.0;
        assert!((pool.empty_share().unwrap() - expected).abs() < 0.02, "{:?}", pool.empty_share());
    }
}
