//! Server threads and clients in one process, over real sockets and clocks.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farcall_drive::Pollers;
use farcall_link::Nic;
use farcall_link::{PRESETS, WaitStrategy};
use farcall_rpc::*;
use farcall_softnic::SoftNic;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

fn echo_server(builder: ServerBuilder) -> (Server, Arc<AtomicU64>) {
    let executed = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&executed);
    let service = move |_| {
        let counted = Arc::clone(&counted);
        move |call: &Call<'_>, reply: &mut Reply<'_>| {
            counted.fetch_add(1, Ordering::Relaxed);
            reply.extend_from_slice(call.payload());
            Ok(())
        }
    };
    (builder.start(&nic(), service).unwrap(), executed)
}

fn connect(server: &Server, options: ClientOptions) -> Client {
    Client::connect(&nic(), server.address().to_string(), options).unwrap()
}

fn call(client: &mut Client, payload: &[u8]) -> Result<Vec<u8>, CallError> {
    let mut reply = Vec::new();
    client.call(1, payload, &mut reply).map(|()| reply)
}

#[test]
fn sleepers_wake_each_other() {
    let pollers = Pollers::start(1).unwrap();
    for preset in PRESETS.iter().map(|preset| preset.name) {
        let bpev = |bp_timeout_us| WaitStrategy::Bpev { bp_timeout_us };
        for server_waits in
            [WaitStrategy::EventBatch, WaitStrategy::Adaptive { max_retry: 5 }, bpev(Some(0)), bpev(None)]
        {
            for client_waits in
                [WaitStrategy::EventBatch, WaitStrategy::Adaptive { max_retry: 16 }, bpev(None)]
            {
                let mut builder = Server::builder().waiting(server_waits);
                if matches!(server_waits, WaitStrategy::Bpev { .. }) {
                    builder = builder.pollers(pollers.clone());
                }
                let (server, executed) = echo_server(builder);
                let mut client =
                    connect(&server, ClientOptions::preset(preset).unwrap().wait_by(client_waits));
                for i in 0..200u32 {
                    assert_eq!(call(&mut client, &i.to_le_bytes()).unwrap(), i.to_le_bytes());
                }
                assert_eq!(executed.load(Ordering::Relaxed), 200);
            }
        }
    }
}

#[test]
fn connects_clients_to_the_requested_thread() {
    let service = |thread: u16| {
        move |_: &Call<'_>, reply: &mut Reply<'_>| {
            reply.extend_from_slice(&thread.to_le_bytes());
            Ok(())
        }
    };
    let server = Server::builder().threads(3).start(&nic(), service).unwrap();
    for thread in [0u16, 2, 1] {
        let mut client = connect(&server, ClientOptions::default().thread(thread));
        assert_eq!(client.server_threads(), 3);
        assert_eq!(call(&mut client, b"").unwrap(), thread.to_le_bytes());
    }
    let refused = Client::connect(&nic(), server.address().to_string(), ClientOptions::default().thread(9));
    assert!(matches!(refused.err(), Some(ConnectError::Handshake(_))));
}

/// Clients that name no thread are distributed over all threads, and reconnect to the thread that has their session.
#[test]
fn connections_are_spread_over_the_threads_by_themselves() {
    let service = |thread: u16| {
        move |_: &Call<'_>, reply: &mut Reply<'_>| {
            reply.extend_from_slice(&thread.to_le_bytes());
            Ok(())
        }
    };
    let server = Server::builder().threads(3).start(&nic(), service).unwrap();
    let mut clients: Vec<Client> = (0..6).map(|_| connect(&server, ClientOptions::default())).collect();
    let count = |clients: &mut Vec<Client>| {
        let mut of_thread = [0; 3];
        for client in clients {
            let thread = call(client, b"").unwrap();
            of_thread[usize::from(u16::from_le_bytes(thread.try_into().unwrap()))] += 1;
        }
        of_thread
    };
    assert_eq!(count(&mut clients), [2, 2, 2]);
    // Clients that disconnect leave places for new ones. It does not matter which disconnect first.
    clients.drain(..3);
    let start = Instant::now();
    while {
        clients.truncate(3);
        clients.extend((0..3).map(|_| connect(&server, ClientOptions::default())));
        count(&mut clients) != [2, 2, 2]
    } {
        // The server may not have noticed yet that they disconnected.
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", count(&mut clients));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_drained_server_ends_and_its_clients_learn_why() {
    let (server, executed) = echo_server(Server::builder());
    let address = server.address();
    let options = ClientOptions::default().reconnect(false);
    let mut client = connect(&server, options);
    assert_eq!(call(&mut client, b"before").unwrap(), b"before");
    server.drain();
    server.join();
    // Longer than the pause after which a client checks whether its server still exists.
    std::thread::sleep(Duration::from_millis(20));
    let error = call(&mut client, b"after").unwrap_err();
    assert_eq!(error.executed(), Executed::No, "{error}");
    assert_eq!(executed.load(Ordering::Relaxed), 1);
    drop(client);
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_client_finds_a_restarted_server_by_itself() {
    let (server, _) = echo_server(Server::builder());
    let address = server.address().to_string();
    let mut client = connect(&server, ClientOptions::default().call_timeout(Duration::from_secs(20)));
    assert_eq!(call(&mut client, b"one").unwrap(), b"one");
    let incarnation = client.server_incarnation();
    drop(server);
    let (_server, executed) = echo_server(Server::builder().address(address));
    // The call after the restart may have been sent to the exited server; then its outcome is reported as unknown.
    let outcomes: Vec<_> = (0..3).map(|_| call(&mut client, b"two")).collect();
    assert!(outcomes[1..].iter().all(|outcome| outcome.as_deref() == Ok(b"two")), "{outcomes:?}");
    if let Err(error) = &outcomes[0] {
        assert_eq!(error.executed(), Executed::Unknown);
    }
    assert_ne!(client.server_incarnation(), incarnation);
    assert!(executed.load(Ordering::Relaxed) >= 2);
}

#[test]
fn holds_slots_of_cancelled_calls_until_the_server_replies() {
    let gate = Arc::new(AtomicU64::new(0));
    let entered = Arc::clone(&gate);
    let service = move |_| {
        let gate = Arc::clone(&entered);
        move |_: &Call<'_>, _: &mut Reply<'_>| {
            while gate.load(Ordering::Acquire) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        }
    };
    let server = Server::builder().start(&nic(), service).unwrap();
    let options = ClientOptions::default().probe(false).window(2);
    let mut client = connect(&server, options.call_timeout(Duration::from_millis(50)));
    let executed = |error: Result<Vec<u8>, CallError>| error.unwrap_err().executed();
    // On a busy machine the deadline of a call may pass before it is sent: it is not executed and occupies no slot.
    let mut outcomes =
        (0..1000).map(|_| executed(call(&mut client, b""))).filter(|known| *known != Executed::No);
    assert_eq!([outcomes.next(), outcomes.next()], [Some(Executed::Unknown); 2]);
    drop(outcomes);
    // Both slots are occupied: a call waits for one, and is not sent; `submit`, which does not wait, reports that.
    assert_eq!(executed(call(&mut client, b"")), Executed::No);
    assert_eq!(client.submit(1, b"").unwrap_err(), CallError::WindowFull { window: 2 });
    gate.store(1, Ordering::Release);
    while call(&mut client, b"").is_err() {}
}

/// No call is pending then, so no event would wake it.
#[test]
fn stays_awake_if_cancelled_calls_already_have_replies() {
    let [gate, entered, answered] = [0; 3].map(|zero| Arc::new(AtomicU64::new(zero)));
    let inside = [&gate, &entered, &answered].map(Arc::clone);
    let service = move |_| {
        let [gate, entered, answered] = inside.clone();
        move |_: &Call<'_>, _: &mut Reply<'_>| {
            entered.fetch_add(1, Ordering::Release);
            while gate.load(Ordering::Acquire) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            answered.fetch_add(1, Ordering::Release);
            Ok(())
        }
    };
    let server = Server::builder().start(&nic(), service).unwrap();
    let options = ClientOptions::default().probe(false).window(2);
    // It sleeps at once, and results arrive without a wake-up.
    let waiting = WaitStrategy::Adaptive { max_retry: 0 };
    let mut client = connect(&server, options.wait_by(waiting));
    let calls = [client.submit(1, b"").unwrap(), client.submit(1, b"").unwrap()];
    // A server that sleeps already is woken by the client's driver iterations alone.
    while entered.load(Ordering::Acquire) == 0 {
        client.progress();
    }
    assert_eq!(calls.map(|call| client.cancel(call)), [false; 2]);
    gate.store(1, Ordering::Release);
    while answered.load(Ordering::Acquire) < 2 {
        std::thread::yield_now();
    }
    // The answers are in their slots a moment later; before that there is an event to wait for.
    std::thread::sleep(Duration::from_millis(20));
    call(&mut client, b"").unwrap();
}

#[test]
fn measures_a_connection_and_reuses_the_profile() {
    let (server, _) = echo_server(Server::builder());
    let mut client = connect(&server, ClientOptions::default().probe(false));
    let before = client.tuning();
    let profile = client.measure(Duration::from_millis(1)).unwrap();
    assert_eq!(client.tuning(), before, "measuring changes nothing");
    assert!(profile.reads().len() >= 6 && profile.reply_ns() > 0, "{profile:?}");
    let bounds = (profile.retries_bound(), profile.low_bytes());
    let known = connect(&server, ClientOptions::default().profile(Some(profile)));
    assert_eq!(known.tuning(), bounds);
    client.submit(1, b"outstanding").unwrap();
    assert_eq!(client.measure(Duration::ZERO), None, "calls would disturb it");
    assert_eq!(client.wait().unwrap().result.unwrap(), b"outstanding");
}
