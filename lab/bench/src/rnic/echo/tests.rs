use super::*;
use crate::peer::tests::plan;
use farcall::select::Selection;

fn try_measure(task: EchoTask) -> Option<EchoResult> {
    match measure(&Selection::softnic().open().unwrap(), task, &plan(3)) {
        Ok(result) => {
            assert!(result.echoes_per_second > 0.0 && result.echoes >= result.samples, "{result:?}");
            Some(result)
        }
        Err(RnicError::Illegal(refusal)) => {
            assert!(refusal.what.contains("this device has no"), "{task}: {refusal}");
            None
        }
        Err(error) => panic!("{task}: {error}"),
    }
}

fn task(request: (Operation, Transport), response: (Operation, Transport)) -> EchoTask {
    let leg = |(operation, transport)| Leg { operation, transport };
    EchoTask {
        request: leg(request),
        response: leg(response),
        len_bytes: 32,
        signal_every: 1,
        inlining: Inlining::UpTo(0),
        window: 8,
        connections: 3,
        assumes_order: false,
    }
}

#[test]
fn echoes_every_legal_pair_of_operations_on_every_transport() {
    use Operation::{Send, SendImm, Write, WriteImm};
    let mut measured = 0;
    for transport in Transport::ALL {
        for request in [Write, WriteImm, Send, SendImm] {
            for response in [Write, WriteImm, Send, SendImm] {
                let legal = request.is_legal_over(transport) && response.is_legal_over(transport);
                let echo = task((request, transport), (response, transport));
                if legal {
                    measured += u32::from(try_measure(echo).is_some());
                } else {
                    assert!(echo.check().is_err());
                }
            }
        }
    }
    assert!(measured >= 16, "RC at least: {measured}");
}

#[test]
fn two_transports_and_every_optimisation() {
    use Operation::{Send, Write};
    use Transport::{Rc, Uc, Ud};
    for pair in [((Write, Rc), (Send, Uc)), ((Write, Uc), (Send, Ud)), ((Send, Ud), (Write, Rc))] {
        for signal_every in [1, 8] {
            for inlining in [Inlining::UpTo(0), Inlining::Auto] {
                try_measure(EchoTask { signal_every, inlining, ..task(pair.0, pair.1) });
            }
        }
    }
}

#[test]
fn a_window_of_one_and_odd_windows() {
    for (window, signal_every, connections, len_bytes) in [(1, 1, 1, 1), (7, 3, 2, 100), (5, 5, 1, 4000)] {
        for operation in [Operation::Write, Operation::Send] {
            let leg = (operation, Transport::Rc);
            let echo = EchoTask { window, signal_every, connections, len_bytes, ..task(leg, leg) };
            assert!(try_measure(echo).is_some());
        }
    }
}

#[test]
fn measures_windows_beyond_the_unknown_sender_limit() {
    for operation in [Operation::Send, Operation::SendImm] {
        let leg = (operation, Transport::Ud);
        try_measure(EchoTask { window: 64, connections: 4, signal_every: 64, ..task(leg, leg) });
    }
}

#[test]
fn what_cannot_echo_is_refused_with_what_can() {
    let rc = |operation| (operation, Transport::Rc);
    let read = task(rc(Operation::Read), rc(Operation::Send)).check().unwrap_err();
    assert!(read.nearest.contains("WRITE or SEND"));
    let datagram = task((Operation::Write, Transport::Ud), rc(Operation::Send)).check().unwrap_err();
    assert!(datagram.nearest.contains("SEND over UD"));
    let seldom = EchoTask { signal_every: 9, ..task(rc(Operation::Send), rc(Operation::Send)) };
    assert!(seldom.check().unwrap_err().nearest.contains('8'));
}
