//! Calls over a device on which what real fabrics do happens, by seed.

use std::sync::atomic::{AtomicUsize, Ordering};

use farcall_faults::{Faults, Observer};
use farcall_link::PRESETS;
use farcall_rpc::{Call, CallError, Client, ClientOptions, Executed, Handler, HandlerError, Reply, Server};
use farcall_softnic::SoftNic;

/// Connections that were broken.
static BROKEN: AtomicUsize = AtomicUsize::new(0);

/// Returns what it gets.
struct Echo;

impl Handler for Echo {
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        reply.extend_from_slice(call.payload());
        Ok(())
    }
}

/// Makes calls of all sizes, server and client with faults; returns how many had no answer.
fn unanswered(spec: &str, preset: &str, calls: usize) -> usize {
    let count: Observer = |fault| {
        BROKEN.fetch_add(usize::from(fault.key == "kill_qp"), Ordering::Relaxed);
    };
    let faults = |seed: u64| Faults::new(format!("seed={seed},{spec}").parse().unwrap(), Some(count));
    let (at_server, at_client) = (faults(1), faults(2));
    let server = Server::builder().start(&at_server.around_all(SoftNic::new()), |_| Echo).unwrap();
    let options = ClientOptions::preset(preset).unwrap();
    let nic = at_client.around_all(SoftNic::new());
    let mut client = Client::connect(&nic, server.address().to_string(), options).unwrap();
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
fn connections_that_break_are_made_anew_and_answers_stay_right() {
    for preset in PRESETS.iter().map(|preset| preset.name) {
        let unanswered = unanswered("kill_qp=0.01,after=20", preset, 300);
        assert!(unanswered < 30, "{preset}: {unanswered} calls without an answer");
        assert!(BROKEN.swap(0, Ordering::Relaxed) > 1, "{preset}: no connection broke");
    }
}

#[test]
fn messages_that_are_lost_are_sent_again_and_answers_stay_right() {
    assert_eq!(unanswered("drop=0.05", "uc-rpc", 300), 0);
    assert_eq!(unanswered("drop=0.05", "herd", 300), 0);
    assert_eq!(unanswered("drop=0.05", "ud-rpc", 300), 0);
}
