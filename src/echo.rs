//! A service to try and to measure calls with.

use farcall::rpc::{Call, Handler, HandlerError, Reply};
use std::time::{Duration, Instant};

/// Answers with the request.
pub const ECHO: u16 = 1;
/// Answers with the first eight bytes of the request.
pub const HEAD: u16 = 2;
/// Computes for as many microseconds as the request says (u32, little-endian), then answers with nothing.
pub const WORK: u16 = 3;

/// Longest work asked for at once; more is refused, because it holds up every client of the thread.
const WORK_MAX: Duration = Duration::from_millis(100);
/// The refusal of a request to [`WORK`] that is none.
const BAD_WORK: u16 = 1;

/// Serves [`ECHO`], [`HEAD`] and [`WORK`].
#[derive(Debug, Default, Clone, Copy)]
pub struct Echo;

impl Handler for Echo {
    #[inline]
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        let payload = call.payload();
        match call.method() {
            ECHO => reply.extend_from_slice(payload),
            HEAD => reply.extend_from_slice(&payload[..payload.len().min(8)]),
            WORK => work(payload)?,
            other => return Err(HandlerError::unknown_method(other)),
        }
        Ok(())
    }
}

fn work(payload: &[u8]) -> Result<(), HandlerError> {
    let duration = payload.try_into().map(|bytes| Duration::from_micros(u32::from_le_bytes(bytes).into()));
    match duration {
        Ok(duration) if duration <= WORK_MAX => {
            let start = Instant::now();
            while start.elapsed() < duration {
                std::hint::spin_loop();
            }
            Ok(())
        }
        _ => Err(HandlerError::new(
            BAD_WORK,
            "the request is four bytes: up to 100000 microseconds, little-endian",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farcall::SoftNic;
    use farcall::rpc::{CallError, Client, ClientOptions, Server};

    #[test]
    fn calls_are_answered_under_every_preset_until_the_server_stops() {
        for preset in farcall_link::PRESETS.iter().map(|preset| preset.name) {
            let server = Server::builder().start(&SoftNic::new(), |_| Echo).unwrap();
            let options = ClientOptions::preset(preset).unwrap().reconnect(false);
            let mut client = Client::connect(&SoftNic::new(), server.address().to_string(), options).unwrap();
            let mut call = |method, payload: &[u8]| {
                let mut reply = Vec::new();
                client.call(method, payload, &mut reply).map(|()| reply)
            };
            for len in [0, 1, 8, 64, 1000, 100_000] {
                let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
                assert_eq!(call(ECHO, &payload).unwrap(), payload);
                assert_eq!(call(HEAD, &payload).unwrap(), payload[..payload.len().min(8)]);
            }
            assert_eq!(call(WORK, &1u32.to_le_bytes()).unwrap(), b"");
            assert!(matches!(call(WORK, b"long"), Err(CallError::Application { code: BAD_WORK, .. })));
            assert!(matches!(call(99, b""), Err(CallError::Server { .. })));
            assert_eq!(call(ECHO, b"still there").unwrap(), b"still there");
            assert!(server.is_serving());
            server.drain();
            server.join();
            assert!(call(ECHO, b"gone").is_err());
        }
    }
}
