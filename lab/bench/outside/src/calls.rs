//! Calls between a client and a server of this process, which run alternately; for the count of instructions that each
//! end executes per call, including its verbs.

use std::hint::black_box;

use farcall_link::{BatchConfig, Batching, Nic, Plan};
use farcall_rpc::{
    BatchCaller, Call, CallContext, Caller, CallerConfig, Handler, HandlerError, Reply, Responder, ResponderConfig,
    ServerReply,
};
use farcall_softnic::SoftNic;
use farcall_verbs::{Clock, Endpoint, MonotonicClock, Nanos};

const METHOD: u16 = 1;
const REQUEST: [u8; 64] = [7; 64];
const REPLY: [u8; 8] = [7; 8];
/// Number of calls per batch.
const BATCH: usize = 8;

struct Echo;

impl Handler for Echo {
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        reply.extend_from_slice(&call.payload()[..REPLY.len()]);
        Ok(())
    }
}

type Server = Responder<Echo, MonotonicClock>;

#[inline(never)]
fn count_serve(server: &mut Server, now: Nanos) {
    server.progress(black_box(now));
}

#[inline(never)]
fn count_submit(client: &mut Caller<ServerReply>, now: Nanos) {
    client.submit(METHOD, black_box(&REQUEST), CallContext::default(), now).unwrap();
}

#[inline(never)]
fn count_take(client: &mut Caller<ServerReply>, now: Nanos) -> bool {
    client.progress(now);
    client.next_completion().is_some_and(|completion| completion.result.unwrap() == REPLY)
}

#[inline(never)]
fn count_submit_batched(client: &mut BatchCaller<ServerReply>, now: Nanos) {
    client.submit(METHOD, black_box(&REQUEST), CallContext::default(), now).unwrap();
}

#[inline(never)]
fn count_take_batched(client: &mut BatchCaller<ServerReply>, now: Nanos) -> usize {
    client.progress(now);
    let mut taken = 0;
    while let Some(completion) = client.next_completion() {
        assert_eq!(completion.result.unwrap(), REPLY);
        taken += 1;
    }
    taken
}

pub fn run(kind: &str, count: usize) {
    let nic = Nic::open(&SoftNic::new()).unwrap();
    let clock = MonotonicClock::new();
    let mut server = Responder::new(nic.clone(), ResponderConfig::default(), 1, Echo, clock).unwrap();
    let plan = Plan::named("server-reply").unwrap();
    if kind == "call-batch" {
        let plan = Plan { batching: Batching::Calls(BatchConfig::fixed(BATCH as u16)), ..plan };
        let mut client = BatchCaller::new(nic, CallerConfig::default().plan(plan)).unwrap();
        let (_, welcome) = server.accept(&client.hello().unwrap(), clock.now()).unwrap();
        client.welcome(welcome, clock.now()).unwrap();
        for _ in 0..count / BATCH {
            let now = clock.now();
            (0..BATCH).for_each(|_| count_submit_batched(&mut client, now));
            count_serve(&mut server, now);
            let mut left = BATCH;
            left -= count_take_batched(&mut client, now);
            while left > 0 {
                // The first messages wait for the device's service thread.
                server.progress(now);
                left -= count_take_batched(&mut client, now);
            }
        }
        return;
    }
    let connections = if kind == "call" { 1 } else { BATCH };
    let mut clients: Vec<Caller<ServerReply>> = Vec::new();
    for _ in 0..connections {
        let mut client = Caller::new(nic.clone(), CallerConfig::default().plan(plan)).unwrap();
        let (_, welcome) = server.accept(&client.hello().unwrap(), clock.now()).unwrap();
        client.welcome(welcome, clock.now()).unwrap();
        clients.push(client);
    }
    for _ in 0..count / connections {
        let now = clock.now();
        clients.iter_mut().for_each(|client| count_submit(client, now));
        count_serve(&mut server, now);
        for client in &mut clients {
            while !count_take(client, now) {
                server.progress(now);
            }
        }
    }
}
