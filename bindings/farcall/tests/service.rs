//! Services with typed methods.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farcall::rpc::service::{Failed, ServiceError};
use farcall::rpc::{
    Call, CallError, CallOptions, Client, ClientOptions, Executed, HandlerError, Reply, Server, Status,
    UnknownBecause,
};
use farcall::{Nic, SoftNic};
use serde::{Deserialize, Serialize};

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

/// Time after which a test considers an operation lost.
const LOST: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Book {
    title: String,
    pages: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum LibraryError {
    Unknown { title: String },
    Closed,
}

#[farcall::service]
trait Library {
    /// Returns a book by its title.
    fn find(&self, title: String) -> Result<Book, LibraryError>;
    fn add(&self, book: Book, copies: u8) -> Result<(), LibraryError>;
    #[method(10)]
    fn numbers(
        &self,
        from: u64,
        count: u64,
    ) -> Result<impl Iterator<Item = u64> + Send + 'static, LibraryError>;
    async fn wait(&self, hours: u64) -> Result<u64, LibraryError>;
    fn blob(&self, bytes: Vec<u8>) -> Result<Vec<u8>, LibraryError>;
    fn panic(&self) -> Result<(), LibraryError>;
}

#[derive(Default)]
struct Shelf {
    added: AtomicU32,
    /// Number of items requested from iterators, and number of iterators that were dropped.
    pulled: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
    /// Number of tasks that were dropped before their end.
    abandoned: Arc<AtomicU64>,
}

struct Numbers {
    next: u64,
    end: u64,
    pulled: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
}

impl Iterator for Numbers {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.pulled.fetch_add(1, Ordering::SeqCst);
        (self.next < self.end).then(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// Counts its drop unless it is disarmed.
struct Abandoned(Option<Arc<AtomicU64>>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.iter().for_each(|count| _ = count.fetch_add(1, Ordering::SeqCst));
    }
}

impl Library for Arc<Shelf> {
    fn find(&self, title: String) -> Result<Book, LibraryError> {
        match title.as_str() {
            "closed" => Err(LibraryError::Closed),
            "Verbs" => Ok(Book { title, pages: 300 }),
            _ => Err(LibraryError::Unknown { title }),
        }
    }

    fn add(&self, book: Book, copies: u8) -> Result<(), LibraryError> {
        assert_eq!(book.pages, 7);
        self.added.fetch_add(copies.into(), Ordering::SeqCst);
        Ok(())
    }

    fn numbers(
        &self,
        from: u64,
        count: u64,
    ) -> Result<impl Iterator<Item = u64> + Send + 'static, LibraryError> {
        if count == 0 {
            return Err(LibraryError::Closed);
        }
        let (pulled, dropped) = (Arc::clone(&self.pulled), Arc::clone(&self.dropped));
        Ok(Numbers { next: from, end: from + count, pulled, dropped })
    }

    async fn wait(&self, hours: u64) -> Result<u64, LibraryError> {
        if hours == 99 {
            panic!("too long");
        }
        let mut abandoned = Abandoned(Some(Arc::clone(&self.abandoned)));
        tokio::time::sleep(Duration::from_secs(hours * 3_600)).await;
        tokio::task::yield_now().await;
        abandoned.0 = None;
        Ok(hours)
    }

    fn blob(&self, bytes: Vec<u8>) -> Result<Vec<u8>, LibraryError> {
        Ok(bytes)
    }

    fn panic(&self) -> Result<(), LibraryError> {
        panic!("told to")
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

struct World {
    server: Server,
    shelf: Arc<Shelf>,
    /// Dropped last: tasks reply until then.
    runtime: tokio::runtime::Runtime,
}

impl World {
    fn new() -> Self {
        let (runtime, shelf) = (runtime(), Arc::new(Shelf::default()));
        let _inside = runtime.enter();
        let service = LibraryServer::new(Arc::clone(&shelf));
        let server = Server::builder().serve(&nic(), service).unwrap();
        drop(_inside);
        Self { server, shelf, runtime }
    }

    fn address(&self) -> String {
        self.server.address().to_string()
    }

    fn client(&self) -> LibraryClient {
        LibraryClient::connect(&nic(), self.address(), ClientOptions::default()).unwrap()
    }
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LOST, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn arguments_values_and_errors_arrive_with_their_types() {
    let world = World::new();
    let mut client = world.client();
    assert_eq!(client.find("Verbs".into()), Ok(Book { title: "Verbs".into(), pages: 300 }));
    assert_eq!(client.find("closed".into()), Err(Failed::Service(LibraryError::Closed)));
    let unknown = LibraryError::Unknown { title: "?".into() };
    assert_eq!(client.find("?".into()), Err(Failed::Service(unknown)));
    client.add(Book { title: String::new(), pages: 7 }, 3).unwrap();
    assert_eq!(world.shelf.added.load(Ordering::SeqCst), 3);
    for len in [0, 1, 64, 5_000, 1 << 20] {
        assert_eq!(client.blob(vec![7; len]).map(|blob| blob.len()), Ok(len));
    }
    let panicked = client.panic().unwrap_err();
    assert!(matches!(&panicked, Failed::Call(CallError::Server { message, .. }) if message == "told to"));
    assert_eq!(panicked.executed(), Executed::Yes);
    assert_eq!(client.find("closed".into()).unwrap_err().executed(), Executed::Yes);
}

#[test]
fn runs_waiting_methods_concurrently_and_cancels_with_caller() {
    let world = World::new();
    world.runtime.block_on(async {
        let nic = nic();
        let client =
            LibraryAsyncClient::connect(&nic, world.address(), ClientOptions::default()).await.unwrap();
        let waits = tokio::spawn({
            let client = client.clone();
            async move { client.wait(1).await }
        });
        for _ in 0..50 {
            assert_eq!(client.wait(0).await, Ok(0));
            assert_eq!(client.find("closed".into()).await, Err(Failed::Service(LibraryError::Closed)));
        }
        assert!(!waits.is_finished());
        // Dropping the future ends the method.
        waits.abort();
        let dropped = waits.await;
        assert!(dropped.unwrap_err().is_cancelled());
        // The deadline of the call has the same effect.
        let hurried = client.with_options(CallOptions::new().timeout(Duration::from_millis(20)).trace_id(7));
        let late = hurried.wait(1).await;
        assert_eq!(late, Err(Failed::Call(CallError::OutcomeUnknown(UnknownBecause::Deadline))));
        let start = Instant::now();
        while world.shelf.abandoned.load(Ordering::SeqCst) < 2 {
            assert!(start.elapsed() < LOST, "the methods go on");
            // An idle connection may sleep; a call wakes it.
            client.wait(0).await.unwrap();
        }
        // A method that panics results in a specific error.
        let panicked = client.wait(99).await.unwrap_err();
        assert!(matches!(&panicked, Failed::Call(CallError::Server { .. })), "{panicked}");
        assert!(panicked.to_string().contains("without an answer"), "{panicked}");
    });
}

#[test]
fn a_stream_comes_page_by_page_as_it_is_taken() {
    let world = World::new();
    let mut client = world.client();
    let all: Vec<u64> = client.numbers(5, 1_000).unwrap().map(Result::unwrap).collect();
    assert_eq!(all, (5..1_005).collect::<Vec<_>>());
    assert!(matches!(client.numbers(5, 0), Err(Failed::Service(LibraryError::Closed))));
    // The server is never more than a page ahead of the client.
    let before = world.shelf.pulled.load(Ordering::SeqCst);
    let mut pages = client.numbers(0, u64::MAX).unwrap();
    for expected in 0..300 {
        assert_eq!(pages.next().unwrap(), Ok(expected));
    }
    assert!(world.shelf.pulled.load(Ordering::SeqCst) - before <= 2 * 256);
    // A stream that the client drops early is dropped at the server, too.
    drop(pages);
    assert_eq!(client.find("closed".into()), Err(Failed::Service(LibraryError::Closed)));
    eventually("the iterator is kept", || world.shelf.dropped.load(Ordering::SeqCst) == 2);
}

#[test]
fn streams_are_bounded_and_end_with_their_connection() {
    let world = World::new();
    world.runtime.block_on(async {
        let nic = nic();
        let client =
            LibraryAsyncClient::connect(&nic, world.address(), ClientOptions::default()).await.unwrap();
        let mut streams = Vec::new();
        for _ in 0..64 {
            streams.push(client.numbers(0, 1_000).await.unwrap());
        }
        let refused = client.numbers(0, 1_000).await.err().unwrap();
        assert!(
            refused.to_string().contains("overloaded") || refused.to_string().contains("holds too many"),
            "{refused}"
        );
        assert_eq!(refused.executed(), Executed::No);
        let mut sum = 0;
        while let Some(number) = streams[0].next().await {
            sum += number.unwrap();
        }
        assert_eq!(sum, 499_500);
        let mut one_more = client.numbers(0, 1_000).await.unwrap();
        assert_eq!(one_more.next().await, Some(Ok(0)));
        streams.clear();
    });
    eventually("iterators are kept", || world.shelf.dropped.load(Ordering::SeqCst) == 65);
}

mod changed {
    use super::{Book, LibraryError};

    /// The same trait, except for one argument.
    #[farcall::service]
    pub trait Library {
        fn find(&self, title: String, edition: u8) -> Result<Book, LibraryError>;
    }
}

mod renumbered {
    use super::{Book, LibraryError};

    #[farcall::service]
    pub trait Library {
        #[method(4)]
        fn find(&self, title: String) -> Result<Book, LibraryError>;
    }
}

mod smaller {
    use super::{Book, LibraryError};

    #[farcall::service]
    pub trait Library {
        fn find(&self, title: String) -> Result<Book, LibraryError>;
    }
}

mod newer {
    use super::{Book, LibraryError};

    #[farcall::service(version = 2)]
    pub trait Library {
        fn find(&self, title: String) -> Result<Book, LibraryError>;
    }
}

#[test]
fn a_service_that_differs_is_refused_and_says_which_method() {
    let world = World::new();
    let (nic, options) = (nic(), ClientOptions::default);
    let refusal = |outcome: Result<(), ServiceError>| match outcome {
        Err(error @ ServiceError::OtherService(_)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let why = refusal(changed::LibraryClient::connect(&nic, world.address(), options()).map(drop));
    assert!(why.contains("method 1 is `fn find(title: String, edition: u8)"), "{why}");
    assert!(why.contains("`fn find(title: String) -> Book, or LibraryError` at the server"), "{why}");
    let why = refusal(renumbered::LibraryClient::connect(&nic, world.address(), options()).map(drop));
    assert!(why.contains("no method 4, `find`; it has one as number 1"), "{why}");
    let why = refusal(newer::LibraryClient::connect(&nic, world.address(), options()).map(drop));
    assert!(why.contains("version 1; this client calls \"Library\", version 2"), "{why}");
    // A server may have more methods than its client.
    let mut smaller = smaller::LibraryClient::connect(&nic, world.address(), options()).unwrap();
    assert_eq!(smaller.find("Verbs".into()).map(|book| book.pages), Ok(300));
}

#[test]
fn each_call_is_checked_not_only_the_first() {
    let world = World::new();
    let mut bytes = Client::connect(&nic(), world.address(), ClientOptions::default()).unwrap();
    let mut reply = Vec::new();
    for request in [&b""[..], b"123", b"1234", b"12345678"] {
        let error = bytes.call(1, request, &mut reply).unwrap_err();
        assert_eq!(error.executed(), Executed::No, "{error}");
    }
    // Valid arguments, with the fingerprint of a different method.
    let fingerprint = LibraryClient::DESCRIPTION.methods[0].fingerprint;
    let other = (fingerprint ^ 1).to_le_bytes();
    let error = bytes.call(1, &[&other[..], b"\x01a"].concat(), &mut reply).unwrap_err();
    assert!(matches!(error, CallError::Server { status: Status::OTHER_METHOD, .. }), "{error}");
    // The right fingerprint, with invalid arguments: too short, too long.
    let find = fingerprint.to_le_bytes();
    for arguments in [&b""[..], b"\x05abc", b"\x01ab"] {
        let error = bytes.call(1, &[&find[..], arguments].concat(), &mut reply).unwrap_err();
        assert_eq!(error.executed(), Executed::No, "{error}");
    }
    bytes.call(1, &[&find[..], b"\x01a"].concat(), &mut reply).unwrap();
    // Pages of streams that do not exist.
    for request in [&b""[..], &[1, 0, 0, 0]] {
        assert!(bytes.call(0xfffe, request, &mut reply).is_err());
    }
}

#[test]
fn a_server_of_bytes_is_no_service() {
    let echo = |call: &Call<'_>, reply: &mut Reply<'_>| {
        reply.extend_from_slice(call.payload());
        Ok(())
    };
    let refuse = |call: &Call<'_>, _: &mut Reply<'_>| Err(HandlerError::unknown_method(call.method()));
    let nic = nic();
    for server in [
        Server::builder().start(&nic, move |_| echo).unwrap(),
        Server::builder().start(&nic, move |_| refuse).unwrap(),
    ] {
        let address = server.address().to_string();
        let error = LibraryClient::connect(&nic, address, ClientOptions::default()).err().unwrap();
        assert!(matches!(error, ServiceError::OtherService(_)), "{error}");
    }
}

#[test]
fn async_methods_need_a_runtime_and_say_so() {
    let service = LibraryServer::new(Arc::new(Shelf::default()));
    let error = Server::builder().serve(&nic(), service).err().unwrap();
    assert!(farcall_verbs::with_sources(&error).contains("Library has async methods"), "{error}");
}
