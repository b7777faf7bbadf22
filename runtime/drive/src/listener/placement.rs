//! Assignment of connections to server threads.

use farcall_link::bootstrap::{Hello, Refusal, RefusalKind};

use super::BootstrapEvent;
use crate::WakeQueue;

/// Event queues of the server threads, and the number of connections of each.
pub(super) struct ServerThreads {
    queues: Vec<WakeQueue<BootstrapEvent>>,
    connections: Vec<usize>,
}

impl ServerThreads {
    pub fn new(queues: Vec<WakeQueue<BootstrapEvent>>) -> Self {
        let connections = vec![0; queues.len()];
        Self { queues, connections }
    }

    /// Sends an event to a server thread.
    pub fn send(&self, thread: usize, event: BootstrapEvent) {
        self.queues[thread].push(event);
    }

    /// Assigns a connection to the thread that the client requests. If it requests none, chooses the thread that has
    /// its session, or one with the fewest connections.
    ///
    /// # Errors
    /// If the requested thread does not exist.
    pub fn place(&mut self, hello: &Hello) -> Result<usize, Refusal> {
        let count = self.queues.len();
        let named = match &hello.resume {
            _ if hello.thread != Hello::ANY_THREAD => Some(usize::from(hello.thread)),
            // A larger number is from an earlier start of the server with more threads; no thread knows that session.
            Some(resume) => Some(usize::from(resume.session.thread())).filter(|thread| *thread < count),
            None => None,
        };
        let thread = named.or_else(|| (0..count).min_by_key(|thread| self.connections[*thread]));
        let Some(thread) = thread.filter(|thread| *thread < count) else {
            let why = format!("thread {} of {count}", hello.thread);
            return Err(RefusalKind::NoSuchThread.because(why));
        };
        self.connections[thread] += 1;
        Ok(thread)
    }

    /// Records that a connection of a thread has ended.
    pub fn release(&mut self, thread: usize) {
        self.connections[thread] -= 1;
    }
}
