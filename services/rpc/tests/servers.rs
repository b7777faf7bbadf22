//! Several servers behind one client.
#![cfg(feature = "tokio")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use farcall_link::Nic;
use farcall_rpc::*;
use farcall_softnic::SoftNic;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

/// Answers with its name.
const NAME: u16 = 1;
/// Answers after the requested number of milliseconds.
const SLOW: u16 = 2;
const FAIL: u16 = 3;
/// Answers with the number of the connection.
const CONNECTION: u16 = 4;
/// Counts its calls, and never answers.
const STUCK: u16 = 5;

/// Number of executed calls of [`STUCK`], at all servers.
static STUCK_CALLS: AtomicU32 = AtomicU32::new(0);

fn start(name: u8) -> Server {
    let handler = move |call: OwnedCall| async move {
        match call.method {
            NAME => Ok(vec![name]),
            SLOW => {
                tokio::time::sleep(Duration::from_secs(3_600)).await;
                Ok(vec![name])
            }
            STUCK => {
                STUCK_CALLS.fetch_add(1, Ordering::Relaxed);
                std::future::pending().await
            }
            CONNECTION => Ok(call.connection.to_le_bytes().to_vec()),
            _ => Err(HandlerError::new(1, "no")),
        }
    };
    Server::builder().start_async(&nic(), handler).unwrap()
}

fn addresses(servers: &[Server]) -> Vec<String> {
    servers.iter().map(|server| server.address().to_string()).collect()
}

fn options() -> ClientOptions {
    ClientOptions::default()
        .reconnect_timeout(Duration::from_millis(50))
        .connect_timeout(Duration::from_secs(20))
}

/// Makes calls, and returns how many each server answered.
async fn names(client: &AsyncServers, calls: usize) -> HashMap<u8, usize> {
    let mut names = HashMap::new();
    for _ in 0..calls {
        *names.entry(client.call(NAME, b"").await.unwrap()[0]).or_default() += 1;
    }
    names
}

#[tokio::test]
async fn calls_go_to_all_servers_in_turn() {
    let servers = [start(0), start(1), start(2)];
    let client = AsyncServers::new(&nic(), addresses(&servers), options(), LoadBalancing::RoundRobin);
    assert_eq!(names(&client, 30).await, HashMap::from([(0, 10), (1, 10), (2, 10)]));
    // An error of the handler is an outcome: no other server is called.
    assert!(matches!(client.call(FAIL, b"").await, Err(CallError::Application { code: 1, .. })));
}

#[tokio::test]
async fn opens_a_connection_per_mention_of_an_address() {
    let server = start(0);
    let address = server.address().to_string();
    let client = AsyncServers::new(&nic(), vec![address; 3], options(), LoadBalancing::RoundRobin);
    let mut calls = HashMap::<Vec<u8>, usize>::new();
    for _ in 0..30 {
        *calls.entry(client.call(CONNECTION, b"").await.unwrap()).or_default() += 1;
    }
    assert_eq!(calls.into_values().collect::<Vec<_>>(), [10; 3]);
}

#[tokio::test]
async fn the_least_loaded_server_is_called() {
    let servers = [start(0), start(1)];
    let client = AsyncServers::new(&nic(), addresses(&servers), options(), LoadBalancing::LeastLoaded);
    names(&client, 2).await;
    // Calls that do not end make one of them busy.
    let busy: Vec<_> = (0..2)
        .map(|_| {
            let client = client.clone();
            let mut call = Box::pin(async move { client.call(SLOW, b"").await });
            let waker = std::task::Waker::noop();
            assert!(call.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
            call
        })
        .collect();
    let mut busy = busy.into_iter();
    // Each server has one call. After one of the calls ends, its server has none, and gets all that follow.
    drop(busy.next());
    let names = names(&client, 10).await;
    assert_eq!(names.values().copied().collect::<Vec<_>>(), [10], "{names:?}");
}

#[tokio::test]
async fn a_call_that_was_not_executed_goes_to_the_next_server() {
    let mut servers = vec![start(0), start(1)];
    let mut addresses = addresses(&servers);
    // No server listens there.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    addresses.push(nobody.to_string());
    let client = AsyncServers::new(&nic(), addresses.clone(), options(), LoadBalancing::RoundRobin);
    let both = names(&client, 9).await;
    assert!(both[&0] >= 3 && both[&1] >= 3, "{both:?}");
    // A server that drained.
    let gone = servers.remove(0);
    let drained = tokio::task::spawn_blocking(move || {
        gone.drain();
        gone.join();
    });
    drained.await.unwrap();
    let (mut answered, mut unknown) = (0, 0);
    while answered < 10 {
        match client.call(NAME, b"").await {
            Ok(name) => {
                assert_eq!(name, [1]);
                answered += 1;
            }
            // Sent before the client noticed that the server had exited.
            Err(error) => {
                assert_eq!(error.executed(), Executed::Unknown, "{error}");
                unknown += 1;
                assert!(unknown <= 1, "{error}");
            }
        }
    }
    // No server is left.
    servers.clear();
    let only = AsyncServers::new(&nic(), [nobody.to_string()], options(), LoadBalancing::RoundRobin);
    let error = only.call(NAME, b"").await.unwrap_err();
    assert_eq!(error.executed(), Executed::No, "{error}");
}

#[tokio::test]
async fn retries_a_call_according_to_its_policy() {
    let place = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = place.local_addr().unwrap();
    drop(place);
    let patient = Retry {
        rounds: 10_000,
        pause_first_max: Duration::from_millis(1),
        pause_max: Duration::from_millis(20),
    };
    let hasty = AsyncServers::new(&nic(), [address.to_string()], options(), LoadBalancing::RoundRobin);
    let client = hasty.clone().retry(patient);
    // No server exists: the timeout expires, or the rounds end. In both cases the call was not executed.
    let hurried = CallOptions::new().timeout(Duration::from_millis(30));
    assert_eq!(client.call_with(NAME, b"", hurried).await, Err(CallError::DeadlineExceeded));
    let twice = hasty.clone().retry(Retry { rounds: 2, ..patient });
    assert!(matches!(twice.call(NAME, b"").await, Err(CallError::NotSent(_))));
    // A server starts.
    let call = tokio::spawn(async move { client.call(NAME, b"").await });
    let error = hasty.call(NAME, b"").await.unwrap_err();
    assert_eq!(error.executed(), Executed::No, "{error}");
    assert!(!call.is_finished());
    let handler = |_: OwnedCall| async { Ok(vec![9]) };
    let _server = Server::builder().address(address.to_string()).start_async(&nic(), handler).unwrap();
    assert_eq!(call.await.unwrap().unwrap(), [9]);
}

#[tokio::test]
async fn does_not_retry_a_call_with_unknown_outcome() {
    let mut servers = vec![start(0), start(1)];
    let client = AsyncServers::new(&nic(), addresses(&servers), options(), LoadBalancing::RoundRobin);
    let client = client.retry(Retry { rounds: 3, ..Retry::default() });
    let hurried = CallOptions::new().timeout(Duration::from_millis(20));
    let late = client.call_with(SLOW, b"", hurried).await;
    assert_eq!(late, Err(CallError::OutcomeUnknown(UnknownBecause::Deadline)));
    // The next call goes to the other server, which is stopped during the call.
    let call = tokio::spawn(async move { client.call(STUCK, b"").await });
    while STUCK_CALLS.load(Ordering::Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let gone = servers.remove(1);
    tokio::task::spawn_blocking(move || drop(gone)).await.unwrap();
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.executed(), Executed::Unknown, "{error}");
    assert_eq!(STUCK_CALLS.load(Ordering::Relaxed), 1);
}

/// The software RNIC's servers listen on 127.0.0.1, to which the name resolves, perhaps in addition to ::1.
#[tokio::test]
async fn a_name_stands_for_all_its_addresses() {
    let server = start(7);
    let port = server.address().port();
    let name = Addresses::Name(format!("localhost:{port}"));
    let client = AsyncServers::from_source(&nic(), name, options(), LoadBalancing::RoundRobin).await.unwrap();
    assert_eq!(names(&client, 5).await, HashMap::from([(7, 5)]));
    let unknown = Addresses::Name("localhost:no port".into());
    let Err(error) = AsyncServers::from_source(&nic(), unknown, options(), LoadBalancing::RoundRobin).await
    else {
        panic!("a port that is none");
    };
    assert!(error.to_string().contains("localhost:no port"), "{error}");
}

#[tokio::test]
async fn rereads_a_changed_file_of_addresses() {
    let servers = [start(0), start(1)];
    let addresses = addresses(&servers);
    let path = std::env::temp_dir().join(format!("farcall-servers-{}", std::process::id()));
    let write = |text: &str| {
        let new = path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &path).unwrap();
    };
    let nic = nic();
    let open = || {
        AsyncServers::from_source(&nic, Addresses::File(path.clone()), options(), LoadBalancing::RoundRobin)
    };
    for (text, why) in
        [("# nobody\n\n", "no address"), (&"a:1 # b\n".repeat(9_000)[..], "more than 65536 bytes")]
    {
        write(text);
        let error = open().await.err().unwrap().to_string();
        assert!(error.contains(why) && error.contains(path.to_str().unwrap()), "{error}");
    }
    write(&(0..65).map(|port| format!("127.0.0.1:{port}\n")).collect::<String>());
    assert!(open().await.err().unwrap().to_string().contains("65 addresses; at most 64"));

    write(&format!("# Servers\n{}   # the first\n", addresses[0]));
    let client = open().await.unwrap();
    assert_eq!(names(&client, 3).await, HashMap::from([(0, 3)]));
    write(&format!("{}\n{}\n", addresses[1], addresses[1]));
    let start = std::time::Instant::now();
    while client.address_of_key(b"any") != addresses[1] {
        assert!(start.elapsed() < Duration::from_secs(60), "it is not read again");
        names(&client, 1).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(names(&client, 3).await, HashMap::from([(1, 3)]));
    // The file cannot be read: the list remains unchanged.
    std::fs::remove_file(&path).unwrap();
    let until = std::time::Instant::now() + Duration::from_millis(2_500);
    while std::time::Instant::now() < until {
        assert_eq!(names(&client, 1).await, HashMap::from([(1, 1)]));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn keeps_the_server_of_a_key_when_others_leave() {
    let servers = [start(0), start(1), start(2)];
    let addresses = addresses(&servers);
    let client = AsyncServers::new(&nic(), addresses.clone(), options(), LoadBalancing::RoundRobin);
    let fewer = AsyncServers::new(&nic(), addresses[..2].to_vec(), options(), LoadBalancing::RoundRobin);
    let mut of_server = HashMap::<String, usize>::new();
    for number in 0..300u32 {
        let key = number.to_le_bytes();
        let address = client.address_of_key(&key);
        *of_server.entry(address.clone()).or_default() += 1;
        if address != addresses[2] {
            assert_eq!(fewer.address_of_key(&key), address);
        }
    }
    assert!(of_server.len() == 3 && of_server.values().all(|keys| *keys > 30), "{of_server:?}");
    for key in [&b"one"[..], b"two", b"three"] {
        let name = client.call_by_key(key, NAME, b"", CallOptions::default()).await.unwrap();
        let expected = addresses.iter().position(|address| *address == client.address_of_key(key)).unwrap();
        assert_eq!(usize::from(name[0]), expected);
    }
}
