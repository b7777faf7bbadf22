//! Load of the client, which checks every response.

use super::failed;
use super::transport::Transport;
use crate::measure::{LatencyRecorder, RoundTrips};
use crate::peer::{PairPlan, PeerError};
use bytes::Bytes;
use farcall_echo::v1::Message;
use farcall_echo::v1::echo_client::EchoClient;
use farcall_echo::v1::echo_direct::EchoDirectClient;
use farcall_verbs::{Clock, MonotonicClock, Nanos};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status};

/// Length of each message in bytes.
pub const MESSAGE_LEN_BYTES: usize = 64;
/// Concurrent unary calls under [`Load::Window`].
pub const CALLS_AT_ONCE: usize = 64;
/// Messages of one call under [`Load::Repeat`].
const REPEATED: u32 = 10_000;

/// Load of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Load {
    /// Sequential unary calls.
    Unary,
    /// One bidirectional call with round trips of a message.
    Converse,
    /// Many concurrent unary calls.
    Window,
    /// Messages that the server streams.
    Repeat,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unary => f.write_str("unary"),
            Self::Converse => f.write_str("bidirectional stream, one message there and back"),
            Self::Window => write!(f, "unary, {CALLS_AT_ONCE} at once"),
            Self::Repeat => f.write_str("server's stream, messages"),
        }
    }
}

/// Records the results after the warm-up.
struct Recorder {
    clock: MonotonicClock,
    start: Nanos,
    end: Nanos,
    before: Nanos,
    latencies: LatencyRecorder,
    count: u64,
}

impl Recorder {
    fn new(warm_up: Duration, duration: Duration) -> Self {
        let clock = MonotonicClock::new();
        let before = clock.now();
        let start = before + warm_up;
        Self { clock, start, end: start + duration, before, latencies: LatencyRecorder::default(), count: 0 }
    }

    /// Records a result, whose latency is the time since the previous one. Returns whether to continue.
    fn came(&mut self) -> bool {
        let now = self.clock.now();
        if self.before >= self.start {
            self.latencies.record_ns(now.0 - self.before.0);
            self.count += 1;
        }
        self.before = now;
        now < self.end || self.count == 0
    }

    fn finish(self) -> RoundTrips {
        let latency = self.latencies.summary();
        let elapsed_ns = self.before.0.saturating_sub(self.start.0).max(1);
        RoundTrips { latency, per_second: self.count as f64 * 1e9 / elapsed_ns as f64, count: self.count }
    }
}

fn message(number: u64, times: u32) -> Message {
    let mut payload = vec![0; MESSAGE_LEN_BYTES];
    payload[..8].copy_from_slice(&number.to_le_bytes());
    Message { payload: Bytes::from(payload), times }
}

fn check(number: u64, answer: &Message) -> Result<(), PeerError> {
    if answer.payload.first_chunk() == Some(&number.to_le_bytes()) {
        Ok(())
    } else {
        Err(PeerError::WrongEcho(number))
    }
}

/// Client of unary calls.
pub(super) trait Unary: Clone + 'static {
    /// Executes one call.
    async fn unary(&mut self, message: Message) -> Result<Message, Status>;
}

impl<T: Transport> Unary for EchoClient<T> {
    async fn unary(&mut self, message: Message) -> Result<Message, Status> {
        Self::unary(self, message).await.map(Response::into_inner)
    }
}

impl Unary for EchoDirectClient {
    async fn unary(&mut self, message: Message) -> Result<Message, Status> {
        Self::unary(self, message).await.map(Response::into_inner)
    }
}

impl Load {
    /// Runs the load: unary calls by `caller`, streams by `client`.
    pub(super) async fn run(
        self,
        caller: impl Unary,
        client: EchoClient<impl Transport>,
        plan: &PairPlan,
    ) -> Result<RoundTrips, PeerError> {
        let recorder = Recorder::new(plan.warm_up, plan.duration);
        match self {
            Self::Unary => unary(caller, recorder).await.map(Recorder::finish),
            Self::Converse => converse(client, recorder).await.map(Recorder::finish),
            Self::Repeat => repeat(client, recorder).await.map(Recorder::finish),
            Self::Window => {
                let tasks = tokio::task::LocalSet::new();
                let (warm_up, duration) = (plan.warm_up, plan.duration);
                let calls: Vec<_> = (0..CALLS_AT_ONCE)
                    .map(|_| tasks.spawn_local(unary(caller.clone(), Recorder::new(warm_up, duration))))
                    .collect();
                tasks
                    .run_until(async {
                        let mut all = RoundTrips::default();
                        let mut latencies = LatencyRecorder::default();
                        for call in calls {
                            let recorder = call.await.map_err(failed)??;
                            latencies.add(&recorder.latencies);
                            let trips = recorder.finish();
                            all.per_second += trips.per_second;
                            all.count += trips.count;
                        }
                        Ok(RoundTrips { latency: latencies.summary(), ..all })
                    })
                    .await
            }
        }
    }
}

async fn unary(mut caller: impl Unary, mut recorder: Recorder) -> Result<Recorder, PeerError> {
    for number in 0.. {
        let answer = caller.unary(message(number, 0)).await.map_err(failed)?;
        check(number, &answer)?;
        if !recorder.came() {
            break;
        }
    }
    Ok(recorder)
}

async fn converse(
    mut client: EchoClient<impl Transport>,
    mut recorder: Recorder,
) -> Result<Recorder, PeerError> {
    let (send, sent) = mpsc::channel(1);
    send.send(message(0, 0)).await.map_err(failed)?;
    let mut answers = client.converse(ReceiverStream::new(sent)).await.map_err(failed)?.into_inner();
    for number in 0.. {
        let answer = answers.message().await.map_err(failed)?.ok_or_else(|| failed("the stream ended"))?;
        check(number, &answer)?;
        if !recorder.came() {
            break;
        }
        send.send(message(number + 1, 0)).await.map_err(failed)?;
    }
    Ok(recorder)
}

async fn repeat(
    mut client: EchoClient<impl Transport>,
    mut recorder: Recorder,
) -> Result<Recorder, PeerError> {
    for number in 0.. {
        let mut answers = client.repeat(message(number, REPEATED)).await.map_err(failed)?.into_inner();
        let mut goes_on = true;
        while let Some(answer) = answers.message().await.map_err(failed)? {
            check(number, &answer)?;
            goes_on = recorder.came();
        }
        if !goes_on {
            break;
        }
    }
    Ok(recorder)
}
