//! Services whose answers are futures.
#![cfg(feature = "tokio")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farcall_link::Nic;
use farcall_link::{PRESETS, Preset};
use farcall_rpc::wire::Status;
use farcall_rpc::*;
use farcall_softnic::SoftNic;
use tokio::sync::Semaphore;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

/// Deadline of every wait: afterwards a test fails.
const LOST: Duration = Duration::from_secs(60);

const ECHO: u16 = 1;
/// Waits until the test allows it to continue.
const WAIT: u16 = 2;
const REFUSE: u16 = 3;
const PANIC: u16 = 4;
const TRACE: u16 = 5;

#[derive(Clone)]
struct Service {
    go: Arc<Semaphore>,
    begun: Arc<AtomicU64>,
    /// Number of futures that were dropped before their end.
    dropped: Arc<AtomicU64>,
}

/// Counts when dropped, unless it is forgotten.
struct Dropped(Arc<AtomicU64>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Service {
    fn new() -> Self {
        Self { go: Arc::new(Semaphore::new(0)), begun: Arc::default(), dropped: Arc::default() }
    }

    async fn answer(self, call: OwnedCall) -> Result<Vec<u8>, HandlerError> {
        match call.method {
            ECHO => Ok(call.payload),
            WAIT => {
                self.begun.fetch_add(1, Ordering::SeqCst);
                let guard = Dropped(Arc::clone(&self.dropped));
                self.go.acquire().await.expect("it is not closed").forget();
                std::mem::forget(guard);
                Ok(call.payload)
            }
            REFUSE => Err(HandlerError::new(9, "no")),
            PANIC => panic!("told to"),
            TRACE => Ok(call.trace_id.to_le_bytes().to_vec()),
            other => Err(HandlerError::unknown_method(other)),
        }
    }

    fn serve(&self) -> Server {
        let service = self.clone();
        let handler = move |call: OwnedCall| service.clone().answer(call);
        Server::builder().start_async(&nic(), handler).unwrap()
    }
}

async fn connect(server: &Server, options: ClientOptions) -> AsyncClient {
    let options = options.connect_timeout(Duration::from_secs(20));
    AsyncClient::connect(&nic(), server.address().to_string(), options).await.unwrap()
}

async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LOST, "{what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_future_that_waits_holds_up_no_other_under_any_preset() {
    for preset in PRESETS.iter().map(|preset| preset.name) {
        let service = Service::new();
        let server = service.serve();
        let client = connect(&server, ClientOptions::preset(preset).unwrap()).await;
        let waits = tokio::spawn({
            let client = client.clone();
            async move { client.call(WAIT, b"at last").await }
        });
        eventually("it does not begin", || service.begun.load(Ordering::SeqCst) == 1).await;
        for number in 0..40u64 {
            let payload = vec![number as u8; 100 * number as usize];
            assert_eq!(client.call(ECHO, &payload).await.unwrap(), payload, "{preset}");
        }
        assert!(!waits.is_finished(), "{preset}");
        service.go.add_permits(1);
        assert_eq!(waits.await.unwrap().unwrap(), b"at last", "{preset}");
    }
}

/// Presets over reliable transports. Over others a wake-up may be lost, so clients repeat their requests periodically.
fn reliable_presets() -> impl Iterator<Item = &'static Preset> {
    PRESETS.iter().filter(|preset| preset.plan.transport.is_reliable())
}

/// A waiting task sleeps: it sends neither requests nor wake-ups until the answer wakes it.
#[tokio::test]
async fn sleeps_in_a_task_until_the_answer_arrives() {
    for preset in reliable_presets().map(|preset| preset.name) {
        let service = Service::new();
        let server = service.serve();
        let client = connect(&server, ClientOptions::preset(preset).unwrap()).await;
        let waits = tokio::spawn({
            let client = client.clone();
            async move { client.call(WAIT, b"at last").await }
        });
        eventually("it does not begin", || service.begun.load(Ordering::SeqCst) == 1).await;
        let look = async || {
            let look = |counters: &Counters| [counters.collects.get(), counters.arms.get()];
            client.inspect(look).await.unwrap()
        };
        // Until it sleeps without a timer.
        let start = Instant::now();
        let mut before = look().await;
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let after = look().await;
            // `look` wakes it as well.
            if before[0] == after[0] && after[1] - before[1] <= 3 {
                break;
            }
            assert!(start.elapsed() < LOST, "{preset}: {before:?}, then {after:?}");
            before = after;
        }
        service.go.add_permits(1);
        assert_eq!(waits.await.unwrap().unwrap(), b"at last", "{preset}");
        let told = client.inspect(|counters| (counters.answers_told.get(), counters.collects.get())).await;
        // Two if the server sent a wake-up while the client sent another request.
        assert!(matches!(told, Some((1 | 2, asked)) if asked <= before[0] + 2), "{preset}: {told:?}");
    }
}

/// The same for a blocking client.
#[tokio::test]
async fn a_blocking_client_that_waits_for_an_answer_is_woken() {
    for preset in reliable_presets().map(|preset| preset.name) {
        let service = Service::new();
        let server = service.serve();
        let address = server.address().to_string();
        let blocked = tokio::task::spawn_blocking(move || {
            let options = ClientOptions::preset(preset).unwrap();
            let mut client = Client::connect(&nic(), &address, options).unwrap();
            let mut reply = Vec::new();
            client.call(WAIT, b"woken", &mut reply).unwrap();
            assert_eq!(reply, b"woken", "{preset}");
            let counters = client.counters();
            [counters.answers_told.get(), counters.collects.get(), counters.arms.get()]
        });
        eventually("it does not begin", || service.begun.load(Ordering::SeqCst) == 1).await;
        // Fifty times the longest pause between two requests of a client that is not woken.
        tokio::time::sleep(Duration::from_millis(500)).await;
        service.go.add_permits(1);
        let [told, asked, armed] = blocked.await.unwrap();
        assert!((1..=2).contains(&told), "{preset}: told {told} times");
        // A client that is not woken sends ninety requests.
        assert!(asked <= 40 && armed <= 80, "{preset}: {asked} questions, {armed} times about to sleep");
    }
}

#[tokio::test]
async fn errors_and_panics_of_futures_are_typed() {
    let service = Service::new();
    let server = service.serve();
    let client = connect(&server, ClientOptions::default()).await;
    let refused = client.call(REFUSE, b"").await;
    assert_eq!(refused, Err(CallError::Application { code: 9, message: "no".into() }));
    match client.call(PANIC, b"").await {
        Err(CallError::Server { status: Status::ANSWER_DROPPED, .. }) => {}
        other => panic!("{other:?}"),
    }
    match client.call(99, b"").await {
        Err(CallError::Server { status: Status::UNKNOWN_METHOD, .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn drops_an_unawaited_future() {
    let service = Service::new();
    let server = service.serve();
    let client = connect(&server, ClientOptions::default()).await;
    // Cancelled by the call's own deadline.
    let options = CallOptions::new().timeout(Duration::from_millis(10));
    let late = client.call_with(WAIT, b"", options).await;
    assert_eq!(late, Err(CallError::OutcomeUnknown(UnknownBecause::Deadline)));
    eventually("the late one goes on", || service.dropped.load(Ordering::SeqCst) == 1).await;
    // Cancelled by a client that drops its own future.
    let waits = tokio::spawn({
        let client = client.clone();
        async move { client.call(WAIT, b"").await }
    });
    eventually("it does not begin", || service.begun.load(Ordering::SeqCst) == 2).await;
    waits.abort();
    eventually("the one given up goes on", || service.dropped.load(Ordering::SeqCst) == 2).await;
    // Cancelled because its client no longer exists.
    let waits = tokio::spawn({
        let client = client.clone();
        async move { client.call(WAIT, b"").await }
    });
    eventually("it does not begin", || service.begun.load(Ordering::SeqCst) == 3).await;
    waits.abort();
    drop(client);
    eventually("the one of a client that is gone goes on", || service.dropped.load(Ordering::SeqCst) == 3)
        .await;
}

#[tokio::test]
async fn a_call_of_a_task_has_its_own_timeout_and_trace() {
    let service = Service::new();
    let server = service.serve();
    let client = connect(&server, ClientOptions::default()).await;
    let traced = client.call_with(TRACE, b"", CallOptions::new().trace_id(0x1234)).await.unwrap();
    assert_eq!(traced, 0x1234u64.to_le_bytes());
    assert_eq!(client.call(TRACE, b"").await.unwrap(), 0u64.to_le_bytes());
}
