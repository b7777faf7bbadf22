//! Calls over a device with injected faults that occur in real fabrics, by seed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use farcall_faults::{Faults, Observer};
use farcall_link::Nic;
use farcall_link::PRESETS;
use farcall_rpc::{
    Call, CallError, Client, ClientOptions, Dispatcher, Executed, Handler, HandlerError, Reply, Requester,
    Server, ServerThread,
};
use farcall_softnic::SoftNic;

fn nic() -> Nic {
    Nic::open(&SoftNic::new()).unwrap()
}

/// Number of connections that were broken.
static BROKEN: AtomicUsize = AtomicUsize::new(0);

/// Returns its request.
struct Echo;

impl Handler for Echo {
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        reply.extend_from_slice(call.payload());
        Ok(())
    }
}

/// Makes calls of all sizes, with faults at server and client. Returns how many had no answer.
fn unanswered(spec: &str, preset: &str, calls: usize) -> usize {
    let count: Observer = |fault| {
        BROKEN.fetch_add(usize::from(fault.key == "kill_qp"), Ordering::Relaxed);
    };
    let faults = |seed: u64| Faults::new(format!("seed={seed},{spec}").parse().unwrap(), Some(count));
    let (at_server, at_client) = (faults(1), faults(2));
    let nic = |faults: &Faults| Nic::open(&faults.around_all(SoftNic::new())).unwrap();
    let server = Server::builder().start(&nic(&at_server), |_| Echo).unwrap();
    let options = ClientOptions::preset(preset).unwrap();
    let mut client = Client::connect(&nic(&at_client), server.address().to_string(), options).unwrap();
    let mut unanswered = 0;
    for number in 0..calls {
        let payload: Vec<u8> = (0..number * 37 % 20_000).map(|at| (at + number) as u8).collect();
        let mut reply = Vec::new();
        match client.call(1, &payload, &mut reply) {
            Ok(()) => assert_eq!(reply, payload, "{spec} {preset}: call {number}"),
            Err(error @ (CallError::Application { .. } | CallError::Server { .. })) => {
                panic!("{spec} {preset}: call {number}: {error}")
            }
            Err(error) => {
                assert_ne!(error.executed(), Executed::Yes, "{spec} {preset}: call {number}: {error}");
                unanswered += 1;
            }
        }
    }
    unanswered
}

#[test]
fn late_completions_change_nothing_for_calls() {
    for preset in PRESETS.iter().map(|preset| preset.name) {
        assert_eq!(unanswered("delay=5us..200us", preset, 150), 0);
    }
}

#[test]
fn reconnects_broken_connections_and_returns_right_answers() {
    for preset in PRESETS.iter().map(|preset| preset.name) {
        let unanswered = unanswered("kill_qp=0.01,after=20", preset, 300);
        assert!(unanswered < 30, "{preset}: {unanswered} calls without an answer");
        assert!(BROKEN.swap(0, Ordering::Relaxed) > 1, "{preset}: no connection broke");
    }
}

#[test]
fn resends_lost_messages_and_returns_right_answers() {
    assert_eq!(unanswered("drop=0.05", "uc-rpc", 300), 0);
    assert_eq!(unanswered("drop=0.05", "herd", 300), 0);
    assert_eq!(unanswered("drop=0.05", "ud-rpc", 300), 0);
}

/// The executed calls in order: the connection that the caller chose, and the number of the call there.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(u16, u32)>>>);

impl Handler for Log {
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        let (to, number) = call.payload().split_at(2);
        let entry =
            (u16::from_le_bytes(to.try_into().unwrap()), u32::from_le_bytes(number.try_into().unwrap()));
        self.0.lock().unwrap().push(entry);
        reply.extend_from_slice(call.payload());
        Ok(())
    }
}

/// Several queue pairs to one peer: a dispatcher that lists a server thread more than once.
#[test]
fn executes_calls_once_and_in_order_on_each_connection() {
    const CONNECTIONS: u16 = 4;
    const CALLS: u32 = 200;
    let log = Log::default();
    let server = {
        let log = log.clone();
        Server::builder().start(&nic(), move |_| log.clone()).unwrap()
    };
    let to_it = ServerThread { address: server.address().to_string(), thread: 0 };
    let faults = Faults::new("seed=3,kill_qp=0.005,after=20".parse().unwrap(), None);
    let nic = Nic::open(&faults.around_all(SoftNic::new())).unwrap();
    let options = ClientOptions::preset("server-reply").unwrap();
    let dispatcher = Dispatcher::start(&nic, &vec![to_it; CONNECTIONS.into()], options).unwrap();
    let mut requester = dispatcher.requester(16).unwrap();
    let (mut answered, mut unanswered) = (0, 0);
    let mut take = |requester: &mut Requester| match requester.wait().unwrap().result {
        Ok(_) => answered += 1,
        Err(error) => {
            assert_ne!(error.executed(), Executed::Yes, "{error}");
            unanswered += 1;
        }
    };
    for number in 0..CALLS {
        for to in 0..CONNECTIONS {
            while requester.available() == 0 {
                take(&mut requester);
            }
            let payload = [&to.to_le_bytes()[..], &number.to_le_bytes()].concat();
            requester.submit(to, 1, &payload).unwrap();
        }
    }
    while requester.pending() > 0 {
        take(&mut requester);
    }
    let log = log.0.lock().unwrap();
    assert!(answered > 700 && log.len() >= answered, "{answered} answered, {unanswered} not");
    for to in 0..CONNECTIONS {
        let numbers: Vec<u32> = log.iter().filter(|call| call.0 == to).map(|call| call.1).collect();
        assert!(numbers.is_sorted_by(|one, next| one < next), "connection {to}: {numbers:?}");
    }
}
