use super::*;
use crate::peer::tests::{env, plan};
use farcall::select::Selection;

/// Measures `task` and checks what holds for every result. Returns `None` if the device reports that it lacks a
/// capability.
fn try_measure(task: RnicTask) -> Option<RnicResult> {
    match measure(&Selection::softnic().open().unwrap(), task, &plan(3)) {
        Ok(result) => {
            assert!(result.messages_per_second > 0.0 && result.bytes_per_second() > 0.0, "{result:?}");
            assert!(result.samples >= 1 && result.sent >= result.samples, "{result:?}");
            assert_eq!(result.latency.is_some(), task.is_latency(), "{result:?}");
            assert!(result.lost == 0 || (task.is_unreliable() && result.lost < result.sent), "{result:?}");
            Some(result)
        }
        Err(RnicError::Illegal(refusal)) => {
            assert!(!refusal.nearest.is_empty(), "{task}: {refusal}");
            None
        }
        Err(error) => panic!("{task}, {} bytes: {error}", task.len_bytes),
    }
}

fn len_of(operation: Operation, len_bytes: usize) -> usize {
    if operation.is_atomic() { ATOMIC_LEN_BYTES } else { len_bytes }
}

fn throughput(operation: Operation, transport: Transport, len_bytes: usize, tuning: Tuning) -> RnicTask {
    RnicTask { operation, transport, test: RnicTest::Throughput, len_bytes, tuning }
}

#[test]
fn measures_latency_and_rate_of_every_legal_operation() {
    let mut measured = 0;
    for transport in Transport::ALL {
        for operation in Operation::ALL {
            let len_bytes = len_of(operation, 64);
            let latency = RnicTask::latency(operation, transport, len_bytes, Tuning::LATENCY);
            let rate = throughput(operation, transport, len_bytes, Tuning::RATE);
            let results = [try_measure(latency), try_measure(rate)].map(|result| result.is_some());
            assert_eq!(results[0], results[1], "{latency} and {rate}");
            assert!(operation.is_legal_over(transport) || !results[0], "{latency}");
            measured += u32::from(results[0]);
        }
    }
    assert!(measured >= 5, "RC WRITE, READ, SEND and those with immediate data at least: {measured}");
}

#[test]
fn sizes_from_a_byte_to_a_megabyte() {
    use Operation::{Read, Send, SendImm, Write, WriteImm};
    for (operation, len_bytes) in
        [(Write, 1), (Write, 65_536), (WriteImm, 3), (Send, 1), (Send, 4096), (SendImm, 257)]
    {
        try_measure(RnicTask::latency(operation, Transport::Rc, len_bytes, Tuning::LATENCY)).unwrap();
    }
    for operation in [Write, WriteImm, Read, Send] {
        try_measure(throughput(operation, Transport::Rc, 1 << 20, Tuning::BANDWIDTH)).unwrap();
    }
}

#[test]
fn windows_chains_signalling_and_inlining_are_as_asked() {
    for (window, chain, signal_every) in
        [(1, 1, 1), (7, 1, 1), (64, 1, 64), (64, 16, 64), (64, 16, 4), (6, 3, 3)]
    {
        for inlining in [Inlining::Auto, Inlining::UpTo(0)] {
            let tuning = Tuning { window, chain, signal_every, inlining, ..Tuning::RATE };
            for operation in [Operation::Write, Operation::Send] {
                let result = try_measure(throughput(operation, Transport::Rc, 32, tuning)).unwrap();
                assert_eq!(result.is_inline, inlining == Inlining::Auto);
                assert_eq!(result.sent % u64::from(chain), 0);
            }
        }
    }
}

#[test]
fn sleepers_are_woken() {
    let events = |tuning| Tuning { sleeps: true, ..tuning };
    for operation in [Operation::Send, Operation::WriteImm, Operation::Write, Operation::Read] {
        try_measure(RnicTask::latency(operation, Transport::Rc, 64, events(Tuning::LATENCY))).unwrap();
        try_measure(throughput(operation, Transport::Rc, 64, events(Tuning::RATE))).unwrap();
    }
}

#[test]
fn many_queue_pairs_share_a_completion_queue() {
    for (qps, active_qps) in [(3, 3), (40, 40), (40, 2)] {
        let many = |tuning| Tuning { window: 8, chain: 2, signal_every: 4, qps, active_qps, ..tuning };
        for operation in [Operation::Send, Operation::Write, Operation::WriteImm] {
            try_measure(throughput(operation, Transport::Rc, 64, many(Tuning::RATE))).unwrap();
            try_measure(RnicTask::latency(operation, Transport::Rc, 64, many(Tuning::LATENCY))).unwrap();
        }
    }
}

#[test]
fn measures_a_queue_shorter_than_the_signalling_period() {
    let tuning = Tuning { qps: 2, active_qps: 2, ..Tuning::LATENCY };
    for operation in [Operation::Write, Operation::Send] {
        try_measure(RnicTask::latency(operation, Transport::Rc, 8, tuning)).unwrap();
    }
}

#[test]
fn a_shared_receive_queue_serves_many_or_is_refused() {
    for transport in Transport::ALL {
        for qps in [1, 5] {
            let shared = |tuning| Tuning { shares_receives: true, qps, active_qps: qps, ..tuning };
            try_measure(throughput(Operation::Send, transport, 64, shared(Tuning::RATE)));
            try_measure(RnicTask::latency(Operation::SendImm, transport, 64, shared(Tuning::LATENCY)));
        }
    }
}

#[test]
fn what_the_target_saw_is_held_against_what_was_sent() {
    let task = throughput(Operation::Send, Transport::Ud, 64, Tuning::RATE);
    let result = RnicResult {
        task,
        latency: None,
        messages_per_second: 100.0,
        samples: 10,
        sent: 20,
        lost: 0,
        is_inline: true,
        cores: BothEnds::default(),
    };
    let accounted = account(result, &TargetCounts { received: 15, first_word: 0 }).unwrap();
    assert_eq!((accounted.lost, accounted.messages_per_second), (5, 75.0));
    let over =
        |operation, transport| RnicResult { task: RnicTask { operation, transport, ..task }, ..result };
    let seen = |received, first_word| TargetCounts { received, first_word };
    assert!(account(over(Operation::Send, Transport::Rc), &seen(19, 0)).is_err());
    assert!(account(over(Operation::Send, Transport::Rc), &seen(20, 0)).is_ok());
    assert!(account(over(Operation::FetchAdd, Transport::Rc), &seen(0, FILL_WORD + 19)).is_err());
    assert!(account(over(Operation::FetchAdd, Transport::Rc), &seen(0, FILL_WORD + 20)).is_ok());
    assert!(account(over(Operation::CompareSwap, Transport::Rc), &seen(0, 0)).is_err());
}

#[test]
fn measures_rates_in_both_directions_with_several_clients() {
    let env = env(3);
    let chosen = Selection::softnic().open().unwrap();
    let tuning = Tuning { window: 4, chain: 1, signal_every: 2, qps: 2, active_qps: 2, ..Tuning::RATE };
    let cases = [
        (Operation::Read, Transport::Rc, 1),
        (Operation::Write, Transport::Rc, 2),
        (Operation::Write, Transport::Uc, 1),
        (Operation::Send, Transport::Ud, 2),
    ];
    for (operation, transport, clients) in cases {
        for direction in [Direction::InBound, Direction::OutBound] {
            let task = throughput(operation, transport, 64, tuning);
            let rate = rate(&chosen, task, direction, clients, &env).unwrap();
            assert!(rate.per_second > 0.0 && rate.per_second.is_finite(), "{task}, {direction}: {rate:?}");
        }
    }
    let latency = RnicTask::latency(Operation::Write, Transport::Rc, 64, Tuning::LATENCY);
    let refused = rate(&chosen, latency, Direction::InBound, 1, &env).unwrap_err();
    assert!(refused.to_string().contains("only rates"), "{refused}");
}
