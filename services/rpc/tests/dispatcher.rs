//! Calls of many threads over few connections.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farcall_link::Nic;
use farcall_link::{BatchConfig, PRESETS, WaitStrategy};
use farcall_rpc::*;
use farcall_softnic::SoftNic;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

const ECHO: u16 = 1;
/// Answers when the test allows it.
const HELD: u16 = 2;

/// Pairs of a thread and a connection that called it.
type Seen = Arc<Mutex<BTreeSet<(u16, u32)>>>;

struct Service {
    thread: u16,
    seen: Seen,
    go: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl Handler for Service {
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        self.seen.lock().unwrap().insert((self.thread, call.connection()));
        if call.method() == HELD {
            self.go.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
        }
        reply.extend_from_slice(&self.thread.to_le_bytes());
        reply.extend_from_slice(call.payload());
        Ok(())
    }
}

struct World {
    server: Server,
    seen: Seen,
    /// Allows a held call to continue.
    go: mpsc::Sender<()>,
}

impl World {
    fn new(threads: u16) -> Self {
        let (go, held) = mpsc::channel();
        let (seen, held) = (Seen::default(), Arc::new(Mutex::new(held)));
        let service = {
            let seen = Arc::clone(&seen);
            move |thread| Service { thread, seen: Arc::clone(&seen), go: Arc::clone(&held) }
        };
        let server = Server::builder().threads(threads).start(&nic(), service).unwrap();
        Self { server, seen, go }
    }

    fn threads(&self, threads: u16) -> Vec<ServerThread> {
        let address = self.server.address().to_string();
        (0..threads).map(|thread| ServerThread { address: address.clone(), thread }).collect()
    }

    fn dispatcher(&self, threads: u16, options: ClientOptions) -> Dispatcher {
        Dispatcher::start(&nic(), &self.threads(threads), options).unwrap()
    }
}

fn answer(thread: u16, payload: &[u8]) -> Vec<u8> {
    [&thread.to_le_bytes()[..], payload].concat()
}

/// Several threads each call several server threads, with several calls in flight.
fn calls_of_all_threads(options: ClientOptions) {
    const REQUESTERS: u32 = 6;
    const THREADS: u16 = 3;
    const ROUNDS: u32 = 60;
    let world = World::new(THREADS);
    let dispatcher = world.dispatcher(THREADS, options);
    std::thread::scope(|threads| {
        for requester in 0..REQUESTERS {
            let mut own = dispatcher.requester(4).unwrap();
            threads.spawn(move || {
                let mut expected = Vec::new();
                for round in 0..ROUNDS {
                    let to = ((requester + round) % u32::from(THREADS)) as u16;
                    // Some exceed a slot.
                    let payload = format!("{requester} {round} ").repeat(1 + (round as usize % 7) * 200);
                    let call = own.submit(to, ECHO, payload.as_bytes()).unwrap();
                    expected.push((call, answer(to, payload.as_bytes())));
                    if own.available() == 0 {
                        take(&mut own, &mut expected);
                    }
                }
                while !expected.is_empty() {
                    take(&mut own, &mut expected);
                }
                assert_eq!((own.pending(), own.available()), (0, 4));
                assert!(own.wait().is_err(), "nothing is outstanding");
            });
        }
    });
    let seen = world.seen.lock().unwrap();
    assert_eq!(seen.len(), usize::from(THREADS), "one connection to each thread: {seen:?}");
}

fn take(requester: &mut Requester, expected: &mut Vec<(CallId, Vec<u8>)>) {
    let done = requester.wait().unwrap();
    let at = expected.iter().position(|(call, _)| *call == done.call).expect("a call of this requester");
    assert_eq!(done.result.unwrap(), expected.swap_remove(at).1);
}

#[test]
fn shares_one_connection_per_server_thread_among_threads() {
    for preset in PRESETS {
        calls_of_all_threads(ClientOptions::preset(preset.name).unwrap());
    }
    calls_of_all_threads(ClientOptions::default().batch(BatchConfig::fixed(8)));
    calls_of_all_threads(ClientOptions::default().wait_by(WaitStrategy::EventBatch));
}

#[test]
fn a_server_thread_that_is_busy_holds_up_only_calls_to_it() {
    let world = World::new(2);
    let dispatcher = world.dispatcher(2, ClientOptions::default());
    let (mut held, mut free) = (dispatcher.requester(3).unwrap(), dispatcher.requester(1).unwrap());
    let calls = [(); 3].map(|()| held.submit(0, HELD, b"held").unwrap());
    assert_eq!(held.submit(1, ECHO, b"x").unwrap_err(), CallError::WindowFull { window: 3 });
    let mut reply = Vec::new();
    for i in 0..200u32 {
        reply.clear();
        free.call(1, ECHO, &i.to_le_bytes(), &mut reply).unwrap();
        assert_eq!(reply, answer(1, &i.to_le_bytes()));
    }
    assert!(held.poll().is_none());
    for call in calls {
        world.go.send(()).unwrap();
        let done = held.wait().unwrap();
        assert_eq!((done.call, done.result.unwrap()), (call, &answer(0, b"held")[..]));
    }
}

#[test]
fn a_server_that_ends_ends_only_calls_to_it() {
    let (gone, stays) = (World::new(1), World::new(1));
    let servers = [gone.threads(1), stays.threads(1)].concat();
    let options = ClientOptions::default().reconnect_timeout(Duration::from_millis(200));
    let dispatcher = Dispatcher::start(&nic(), &servers, options).unwrap();
    let mut requester = dispatcher.requester(2).unwrap();
    let mut reply = Vec::new();
    requester.call(0, ECHO, b"known", &mut reply).unwrap();
    drop(gone);
    let lost = requester.submit(0, ECHO, b"lost").unwrap();
    // While the dispatcher tries to reconnect.
    for _ in 0..100 {
        let other = requester.submit(1, ECHO, b"other").unwrap();
        let (mut done, mut error) = (false, None);
        while !done {
            let completion = requester.wait().unwrap();
            done = completion.call == other;
            error = error.or(completion.result.err());
        }
        if let Some(error) = error {
            assert!(error.executed() != Executed::Yes, "{error}");
            return;
        }
    }
    let completion = requester.wait().unwrap();
    assert!(completion.call == lost && completion.result.unwrap_err().executed() != Executed::Yes);
}

#[test]
fn reconnects_to_a_restarted_server() {
    let world = World::new(1);
    let dispatcher = world.dispatcher(1, ClientOptions::default().reconnect_timeout(Duration::from_secs(60)));
    let mut requester = dispatcher.requester(1).unwrap();
    let mut reply = Vec::new();
    requester.call(0, ECHO, b"before", &mut reply).unwrap();
    let address = world.server.address();
    drop(world);
    requester.submit(0, ECHO, b"after").unwrap();
    let echo = |call: &Call<'_>, reply: &mut Reply<'_>| {
        reply.extend_from_slice(call.payload());
        Ok(())
    };
    let _again = Server::builder().address(address.to_string()).start(&nic(), move |_| echo).unwrap();
    match requester.wait().unwrap().result {
        Ok(result) => assert_eq!(result, b"after"),
        // It was in flight when the first server ended.
        Err(error) => assert_eq!(error.executed(), Executed::Unknown),
    }
    reply.clear();
    requester.call(0, ECHO, b"of the second", &mut reply).unwrap();
    assert_eq!(reply, b"of the second");
}

#[test]
fn wakes_waiting_requesters_when_a_dispatcher_ends() {
    let world = World::new(1);
    let dispatcher = world.dispatcher(1, ClientOptions::default());
    let mut requester = dispatcher.requester(2).unwrap();
    requester.submit(0, HELD, b"held").unwrap();
    requester.submit(0, HELD, b"behind it").unwrap();
    let waiting = std::thread::spawn(move || {
        let errors = [(); 2].map(|()| requester.wait().unwrap().result.unwrap_err());
        (errors, requester.submit(0, ECHO, b"x").unwrap_err(), requester.pending())
    });
    std::thread::sleep(Duration::from_millis(20));
    drop(dispatcher);
    let (errors, after, pending) = waiting.join().unwrap();
    assert!(errors.iter().all(|error| error.executed() != Executed::Yes), "{errors:?}");
    assert_eq!((after, pending), (CallError::NotSent(Broken::Closed), 0));
    (0..2).for_each(|_| world.go.send(()).unwrap());
}

#[test]
fn serves_others_after_a_requester_is_dropped() {
    let world = World::new(1);
    let dispatcher = world.dispatcher(1, ClientOptions::default());
    let mut stays = dispatcher.requester(1).unwrap();
    let mut reply = Vec::new();
    for i in 0..50u8 {
        let mut goes = dispatcher.requester(8).unwrap();
        (0..8).for_each(|_| _ = goes.submit(0, ECHO, b"nobody waits").unwrap());
        drop(goes);
        reply.clear();
        stays.call(0, ECHO, &[i], &mut reply).unwrap();
        assert_eq!(reply, answer(0, &[i]));
    }
}

#[test]
fn a_deadline_ends_a_call_that_the_server_holds() {
    let world = World::new(1);
    let dispatcher = world.dispatcher(1, ClientOptions::default().call_timeout(Duration::from_millis(50)));
    let mut requester = dispatcher.requester(1).unwrap();
    let error = requester.call(0, HELD, b"held", &mut Vec::new()).unwrap_err();
    assert_eq!(error, CallError::OutcomeUnknown(UnknownBecause::Deadline));
    world.go.send(()).unwrap();
}
