//! Which server thread a connection is given to.

use farcall_link::bootstrap::{Hello, Refusal, RefusalKind};

use super::BootstrapEvent;
use crate::WakeQueue;

/// The server threads: how they are told of clients, and how many each has.
pub(super) struct ServerThreads {
    queues: Vec<WakeQueue<BootstrapEvent>>,
    connections: Vec<usize>,
}

impl ServerThreads {
    pub fn new(queues: Vec<WakeQueue<BootstrapEvent>>) -> Self {
        let connections = vec![0; queues.len()];
        Self { queues, connections }
    }

    /// Tells a thread.
    pub fn tell(&self, thread: usize, event: BootstrapEvent) {
        self.queues[thread].push(event);
    }

    /// Gives a connection to the thread that its client names; if it names none, to the one that has its session, or to
    /// one with the fewest connections.
    ///
    /// # Errors
    /// If there is no such thread.
    pub fn place(&mut self, hello: &Hello) -> Result<usize, Refusal> {
        let count = self.queues.len();
        let named = match &hello.resume {
            _ if hello.thread != Hello::ANY_THREAD => Some(usize::from(hello.thread)),
            // Of an earlier start of the server, which had more: the session is unknown wherever it is asked for.
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

    /// A connection that was given to a thread is gone.
    pub fn left(&mut self, thread: usize) {
        self.connections[thread] -= 1;
    }
}
