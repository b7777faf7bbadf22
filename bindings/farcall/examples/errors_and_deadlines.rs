//! Failures of calls: every error states whether the handler ran.
//!
//!     cargo run -p farcall --example errors_and_deadlines

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farcall::rpc::{
    Call, CallError, CallOptions, Client, ClientOptions, Executed, HandlerError, Reply, Server,
    UnknownBecause,
};
use farcall::{Nic, SoftNic};

const DIVIDE: u16 = 1;
const WAIT: u16 = 2;

/// Error codes of the service.
const BAD_REQUEST: u16 = 1;
const DIVISION_BY_ZERO: u16 = 2;

/// Set when the caller of `WAIT` has cancelled.
static GIVEN_UP: AtomicBool = AtomicBool::new(false);

fn handle(call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
    match (call.method(), call.payload()) {
        (DIVIDE, [_, 0]) => Err(HandlerError::new(DIVISION_BY_ZERO, "division by zero")),
        (DIVIDE, [dividend, divisor]) => {
            reply.extend_from_slice(&[dividend / divisor]);
            Ok(())
        }
        (DIVIDE, other) => {
            Err(HandlerError::new(BAD_REQUEST, format!("{} bytes instead of two", other.len())))
        }
        (WAIT, _) => {
            while !GIVEN_UP.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        }
        (other, _) => Err(HandlerError::unknown_method(other)),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nic = Nic::open(&SoftNic::new())?;
    let server = Server::builder().start(&nic, |_thread| handle)?;
    let mut client = Client::connect(&nic, server.address().to_string(), ClientOptions::default())?;
    let mut reply = Vec::new();

    client.call(DIVIDE, &[84, 2], &mut reply)?;
    assert_eq!(reply, [42]);

    // An error of the handler with its code and text. The handler ran to its end.
    match client.call(DIVIDE, &[1, 0], &mut reply) {
        Err(error @ CallError::Application { code: DIVISION_BY_ZERO, .. }) => {
            println!("{error}");
            assert_eq!(error.executed(), Executed::Yes);
        }
        other => panic!("expected the handler's refusal, not {other:?}"),
    }

    // The call was sent, and its timeout of half a second expired: it is unknown whether the handler ran. It runs at
    // most once, so calling again is correct only if running twice does no harm.
    match client.call_with(WAIT, b"", &mut reply, CallOptions::new().timeout(Duration::from_millis(500))) {
        Err(error @ CallError::OutcomeUnknown(UnknownBecause::Deadline)) => {
            println!("{error}");
            assert_eq!(error.executed(), Executed::Unknown);
        }
        other => panic!("expected an unknown outcome, not {other:?}"),
    }
    GIVEN_UP.store(true, Ordering::Relaxed);

    server.drain();
    server.join();
    Ok(())
}
