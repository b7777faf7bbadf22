//! The client under tokio.
#![cfg(feature = "tokio")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use farcall_link::Nic;
use farcall_link::PRESETS;
use farcall_rpc::*;
use farcall_softnic::SoftNic;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

fn echo(call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
    reply.extend_from_slice(call.payload());
    Ok(())
}

fn server() -> Server {
    Server::builder().start(&nic(), |_| echo).unwrap()
}

async fn connect(server: &Server) -> AsyncClient {
    let options = ClientOptions::default().connect_timeout(Duration::from_secs(20));
    AsyncClient::connect(&nic(), server.address().to_string(), options).await.unwrap()
}

#[tokio::test]
async fn more_tasks_than_the_window_share_a_connection() {
    for preset in PRESETS.iter().map(|preset| preset.name) {
        let server = server();
        let options = ClientOptions::preset(preset).unwrap();
        let address = server.address().to_string();
        let client = AsyncClient::connect(&nic(), address, options).await.unwrap();
        let tasks: Vec<_> = (0..100u32)
            .map(|i| {
                let client = client.clone();
                tokio::spawn(async move { client.call(1, &vec![i as u8; i as usize * 100]).await })
            })
            .collect();
        for (i, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap().unwrap(), vec![i as u8; i * 100]);
        }
    }
}

#[tokio::test]
async fn keeps_other_calls_after_a_future_is_dropped() {
    let server = server();
    let client = connect(&server).await;
    for i in 0..50u8 {
        let dropped = client.call(1, b"dropped");
        let _ = tokio::time::timeout(Duration::ZERO, dropped).await;
        assert_eq!(client.call(1, &[i]).await.unwrap(), [i]);
    }
}

#[tokio::test]
async fn a_server_that_ends_ends_the_calls() {
    let server = server();
    let options = ClientOptions::default().reconnect(false);
    let address = server.address().to_string();
    let client = AsyncClient::connect(&nic(), address, options).await.unwrap();
    assert_eq!(client.call(1, b"x").await.unwrap(), b"x");
    drop(server);
    assert!(client.call(1, b"y").await.is_err());
}

/// Results reach tasks in the same way as threads.
#[tokio::test]
async fn a_task_fetches_its_results() {
    const CALLS: u64 = 50;
    for preset in PRESETS.iter().map(|preset| preset.name) {
        let server = server();
        let address = server.address().to_string();
        // Fast calls on a busy machine may appear slow: no number of failed fetches makes rf-rpc switch to
        // server-reply.
        let mut options = ClientOptions::preset(preset).unwrap().probe(false);
        options.config.fetch_retries_max = u32::MAX;
        options.config.tune_while_running = false;
        options.config.plan.waiting = farcall_link::WaitStrategy::Busy;
        let client = AsyncClient::connect(&nic(), address, options).await.unwrap();
        for i in 0..CALLS {
            assert_eq!(client.call(1, &i.to_le_bytes()).await.unwrap(), i.to_le_bytes());
        }
        let (fetched, replied, reads) = client
            .inspect(|counters| (counters.fetched.get(), counters.replied.get(), counters.reads.get()))
            .await
            .unwrap();
        let fetches = matches!(preset, "rf-rpc" | "fetch" | "rdma-memcached");
        let expected = if fetches { (CALLS, 0) } else { (0, CALLS) };
        assert_eq!((fetched, replied), expected, "{preset}");
        assert!(reads >= fetched, "{preset}: {reads} READs");
    }
}

/// A task that waits long sleeps; its result is pushed.
#[tokio::test]
async fn a_task_that_waits_long_does_not_fetch_all_the_time() {
    let slow = |call: &Call<'_>, reply: &mut Reply<'_>| {
        std::thread::sleep(Duration::from_millis(200));
        reply.extend_from_slice(call.payload());
        Ok(())
    };
    let server = Server::builder().start(&nic(), move |_| slow).unwrap();
    let options = ClientOptions::preset("fetch").unwrap();
    let address = server.address().to_string();
    let client = AsyncClient::connect(&nic(), address, options).await.unwrap();
    // The sleeping client also fetches at long intervals: its fetch and the push may coincide, and either delivers the
    // result.
    for calls in 1..=20 {
        assert_eq!(client.call(1, b"x").await.unwrap(), b"x");
        let (reads, notified) =
            client.inspect(|counters| (counters.reads.get(), counters.notified.get())).await.unwrap();
        assert!(reads < calls * 2_000, "{reads} READs in {calls} times 200 ms");
        if notified > 0 {
            return;
        }
    }
    panic!("nothing was pushed to the sleeper");
}

/// Number of polls of a task that is always runnable, while another one waits for a call.
const TURNS_BESIDE: u32 = 600;

/// Returns how many fetches of a call failed, and how often its task was armed, during these polls.
async fn fetch_unsuccessfully(retries_max: u32) -> (u64, u64) {
    let release = Arc::new(AtomicBool::new(false));
    let released = release.clone();
    let stuck = move |call: &Call<'_>, reply: &mut Reply<'_>| {
        while !released.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        reply.extend_from_slice(call.payload());
        Ok(())
    };
    let server = Server::builder().start(&nic(), move |_| stuck.clone()).unwrap();
    let mut options = ClientOptions::preset("fetch").unwrap().probe(false);
    (options.config.fetch_retries_max, options.config.tune_while_running) = (retries_max, false);
    options.config.plan.waiting = farcall_link::WaitStrategy::Adaptive { max_retry: 1_000_000 };
    let address = server.address().to_string();
    let client = AsyncClient::connect(&nic(), address, options).await.unwrap();
    let mut turns = 0;
    let beside = tokio::spawn(std::future::poll_fn(move |context| {
        // Longer than a pause between fetches: a client that fetches whenever its task is polled does so each time.
        std::thread::sleep(Duration::from_micros(100));
        turns += 1;
        if turns == TURNS_BESIDE {
            release.store(true, Ordering::Release);
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }));
    assert_eq!(client.call(1, b"x").await.unwrap(), b"x");
    beside.await.unwrap();
    client.inspect(|counters| (counters.failed_fetches.get(), counters.arms.get())).await.unwrap()
}

/// R determines how often a task fetches without a result before it sleeps, independently of how often it is polled.
#[tokio::test]
async fn a_task_fetches_r_times_and_then_sleeps_to_be_pushed() {
    // A sleeping client fetches at increasing intervals.
    const LOOKS_MAX: u64 = TURNS_BESIDE as u64 / 2;
    for retries_max in [1, 30, 100] {
        let (failed, arms) = fetch_unsuccessfully(retries_max).await;
        let least = u64::from(retries_max) + 1;
        assert!((least..least + LOOKS_MAX).contains(&failed), "R {retries_max}: {failed} fetches in vain");
        assert!(arms > 0, "R {retries_max}: {failed} fetches in vain");
    }
}
