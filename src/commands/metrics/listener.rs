//! The loop that serves all clients of `--metrics`: one thread, sockets that do not block, bounded in number and time.

use super::exchange::{Exchange, Progress};
use farcall::stats::{prometheus, read_pid};
use farcall_drive::AcceptBackoff;
use farcall_stats::Block;
use farcall_verbs::with_sources;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Maximum number of clients at a time. A further client replaces the one that waits longest.
const CLIENTS_MAX: usize = 64;

/// Maximum time from the accept of a client to the end of its connection.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

farcall_stats::counters! {
    /// Counters of the listener for `--metrics`.
    struct ListenerCounters {
        /// Clients that connected to read metrics.
        clients,
        /// Replies that were sent completely.
        replies,
        /// Clients that were disconnected because they took too long to send a request or to read the reply.
        timed_out,
        /// Clients that were disconnected because other clients needed their slots.
        displaced,
        /// Clients that disconnected, or sent no request of HTTP, before they had a reply.
        failed,
    }
}

pub(super) struct MetricsListener {
    socket: TcpListener,
    /// In the order of their accept: the first one waits longest.
    clients: Vec<Client>,
    backoff: AcceptBackoff,
    counters: Block<ListenerCounters>,
}

struct Client {
    exchange: Exchange,
    deadline: Instant,
}

impl MetricsListener {
    pub(super) fn new(socket: TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            clients: Vec::with_capacity(CLIENTS_MAX),
            backoff: AcceptBackoff::new("listener of --metrics"),
            counters: Block::new("metrics listener 0", 0),
        })
    }

    /// Serves until the process exits.
    pub(super) fn run(&mut self) {
        loop {
            let ready = self.wait();
            let mut number = 0;
            let counters = &self.counters;
            self.clients.retain_mut(|client| {
                let is_ready = ready.get(number).is_some_and(|is_ready| *is_ready);
                number += 1;
                let progress = if is_ready { client.exchange.proceed(reply) } else { Progress::Waits };
                match progress {
                    Progress::Waits if Instant::now() < client.deadline => return true,
                    Progress::Waits if client.exchange.has_replied() => counters.replies.increment(),
                    Progress::Waits => counters.timed_out.increment(),
                    Progress::Replied => counters.replies.increment(),
                    Progress::Failed => counters.failed.increment(),
                }
                false
            });
            self.accept();
        }
    }

    /// Waits for a client, for a new one or for a deadline. Returns whether each client is ready.
    fn wait(&mut self) -> Vec<bool> {
        let deadlines = self.clients.iter().map(|client| client.deadline);
        let until_deadline =
            deadlines.map(|deadline| deadline.saturating_duration_since(Instant::now())).min();
        let timeout = until_deadline.into_iter().chain(self.backoff.remaining()).min();
        // While `accept` fails, the socket stays readable, so it is not polled during the pause.
        let accepts = if self.backoff.remaining().is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut polled: Vec<PollFd<'_>> = self
            .clients
            .iter()
            .map(|client| PollFd::new(client.exchange.socket(), client.exchange.awaited()))
            .collect();
        polled.push(PollFd::new(&self.socket, accepts));
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        });
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) => polled.iter().map(|polled| !polled.revents().is_empty()).collect(),
            // After a signal, all sockets are tried; those that are not ready return `WouldBlock`.
            Err(_) => vec![true; polled.len()],
        }
    }

    fn accept(&mut self) {
        if self.backoff.remaining().is_some() && !self.backoff.take_expired() {
            return;
        }
        // Accepts at most as many clients as there are slots, so that ready clients are served first.
        for _ in 0..CLIENTS_MAX {
            match self.socket.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) if self.backoff.should_retry(&error) => {}
                Err(_) => return,
            }
        }
    }

    fn admit(&mut self, stream: TcpStream) {
        self.counters.clients.increment();
        let Ok(exchange) = Exchange::new(stream) else { return self.counters.failed.increment() };
        if self.clients.len() == CLIENTS_MAX {
            let longest = self.clients.remove(0);
            let had_reply = longest.exchange.has_replied();
            if had_reply { &self.counters.replies } else { &self.counters.displaced }.increment();
        }
        self.clients.push(Client { exchange, deadline: Instant::now() + CLIENT_TIMEOUT });
    }
}

/// Returns the status and the body for the first line of a request.
fn reply(method: &str, path: &str) -> (&'static str, String) {
    match (method, path) {
        ("GET" | "HEAD", "/metrics") => match read_pid(std::process::id()) {
            Ok(report) => ("200 OK", prometheus(&report)),
            Err(error) => ("503 Service Unavailable", format!("{}\n", with_sources(&error))),
        },
        ("GET" | "HEAD", "/") => ("200 OK", "farcall: GET /metrics\n".to_owned()),
        ("GET" | "HEAD", _) => ("404 Not Found", "farcall: GET /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "farcall: GET /metrics\n".to_owned()),
    }
}
