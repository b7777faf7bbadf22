//! A service whose behaviour is controlled by the metadata of its calls.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use farcall_echo::v1::Message;
use farcall_echo::v1::echo_server::Echo;
use tokio_stream::{Stream, StreamExt};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Response, Status, Streaming};

/// Values of the metadata entry `do`.
pub const FAIL: &str = "fail";
pub const PANIC: &str = "panic";
pub const WAIT: &str = "wait";
pub const SPAWN: &str = "spawn";
pub const ANSWER_AT_ONCE: &str = "answer-at-once";

/// Counters of the service.
#[derive(Clone, Default)]
pub struct Behaviour {
    pub begun: Arc<AtomicUsize>,
    pub dropped: Arc<AtomicUsize>,
    pub produced: Arc<AtomicUsize>,
    pub taken: Arc<AtomicUsize>,
}

/// Counts its drop.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub fn count(counter: &AtomicUsize) -> usize {
    counter.load(Ordering::SeqCst)
}

pub fn message(payload: impl Into<Bytes>, times: u32) -> Message {
    Message { payload: payload.into(), times }
}

pub fn told<T>(what: &'static str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("do", what.parse().unwrap());
    request
}

pub fn failure() -> Status {
    let mut metadata = MetadataMap::new();
    metadata.insert("x-why", "asked".parse().unwrap());
    metadata.insert_bin("x-why-bin", MetadataValue::from_bytes(&[0, 255, 7]));
    let details = Bytes::from_static(&[1, 2, 3, 0, 255]);
    Status::with_details_and_metadata(Code::FailedPrecondition, "as asked: ä%\n", details, metadata)
}

fn says(metadata: &MetadataMap, what: &str) -> bool {
    metadata.get("do").is_some_and(|said| said == what)
}

impl Behaviour {
    async fn obey(&self, metadata: &MetadataMap) -> Result<(), Status> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let guard = Guard(Arc::clone(&self.dropped));
        if says(metadata, FAIL) {
            return Err(failure());
        } else if says(metadata, PANIC) {
            panic!("as asked");
        } else if says(metadata, WAIT) {
            std::future::pending::<()>().await;
        } else if says(metadata, SPAWN) {
            // Several tasks that run alternately.
            for _ in 0..20 {
                tokio::spawn(async { tokio::task::yield_now().await }).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(guard);
        Ok(())
    }
}

/// Returns received metadata with names `x-...` to the client.
fn answer<T>(metadata: &MetadataMap, message: T) -> Response<T> {
    let mut response = Response::new(message);
    let mut headers = http::HeaderMap::new();
    for (name, value) in &metadata.clone().into_headers() {
        if name.as_str().starts_with("x-") {
            headers.append(name, value.clone());
        }
    }
    *response.metadata_mut() = MetadataMap::from_headers(headers);
    response
}

/// A stream that counts its drop.
pub struct Guarded(Pin<Box<dyn Stream<Item = Result<Message, Status>> + Send>>, Guard);

impl Stream for Guarded {
    type Item = Result<Message, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(context)
    }
}

#[tonic::async_trait]
impl Echo for Behaviour {
    async fn unary(&self, request: Request<Message>) -> Result<Response<Message>, Status> {
        self.obey(request.metadata()).await?;
        let (metadata, _, message) = request.into_parts();
        Ok(answer(&metadata, message))
    }

    async fn collect(&self, request: Request<Streaming<Message>>) -> Result<Response<Message>, Status> {
        self.obey(request.metadata()).await?;
        if says(request.metadata(), ANSWER_AT_ONCE) {
            return Ok(Response::new(message("early", 0)));
        }
        let (metadata, _, mut messages) = request.into_parts();
        let (mut all, mut times) = (Vec::new(), 0);
        while let Some(message) = messages.try_next().await? {
            all.extend_from_slice(&message.payload);
            times += 1;
            self.taken.fetch_add(1, Ordering::SeqCst);
        }
        Ok(answer(&metadata, message(all, times)))
    }

    type RepeatStream = Guarded;

    async fn repeat(&self, request: Request<Message>) -> Result<Response<Guarded>, Status> {
        let fails = says(request.metadata(), FAIL);
        if !fails {
            self.obey(request.metadata()).await?;
        }
        let (metadata, _, asked) = request.into_parts();
        let produced = Arc::clone(&self.produced);
        let messages = (0..asked.times).map(move |at| {
            produced.fetch_add(1, Ordering::SeqCst);
            Ok(message(asked.payload.clone(), at))
        });
        let end = fails.then(|| Err(failure()));
        let stream = Box::pin(tokio_stream::iter(messages.chain(end)));
        Ok(answer(&metadata, Guarded(stream, Guard(Arc::clone(&self.dropped)))))
    }

    type ConverseStream = Guarded;

    async fn converse(&self, request: Request<Streaming<Message>>) -> Result<Response<Guarded>, Status> {
        self.obey(request.metadata()).await?;
        let (metadata, _, messages) = request.into_parts();
        let stream = Box::pin(messages);
        Ok(answer(&metadata, Guarded(stream, Guard(Arc::clone(&self.dropped)))))
    }
}
