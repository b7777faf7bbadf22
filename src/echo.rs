//! An echo service for tests and measurements of calls.

use farcall::rpc::{Call, Handler, HandlerError, Reply};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Replies with the request.
pub const ECHO: u16 = 1;
/// Replies with the first eight bytes of the request.
pub const HEAD: u16 = 2;
/// Computes for the number of microseconds in the request (u32, little-endian), then replies with an empty result.
pub const WORK: u16 = 3;
/// Replies with as many bytes as the first four of the request state (u32, little-endian), from memory prepared in
/// advance.
pub const BLOCK: u16 = 4;
/// Computes like [`WORK`] for the number of microseconds in the second four bytes, then replies like [`BLOCK`].
pub const JOB: u16 = 5;

/// Maximum duration of one computation. A longer one is refused, because it delays every client of the thread.
const WORK_MAX: Duration = Duration::from_millis(100);
/// Error code of an invalid request to [`WORK`].
const BAD_WORK: u16 = 1;
/// Length of the memory from which blocks are taken in turn: more than the caches of a core hold.
const REGION_LEN_BYTES: usize = 64 << 20;
/// Its contents.
const BLOCK_BYTE: u8 = 0x5A;
/// Maximum length of a block in bytes.
const BLOCK_LEN_BYTES_MAX: usize = 8 << 20;
/// Error code of an invalid request to [`BLOCK`].
const BAD_BLOCK: u16 = 2;

/// Created when the first block is requested.
static REGION: LazyLock<Vec<u8>> = LazyLock::new(|| vec![BLOCK_BYTE; REGION_LEN_BYTES]);

/// Serves [`ECHO`], [`HEAD`], [`WORK`], [`BLOCK`] and [`JOB`].
#[derive(Debug, Default, Clone, Copy)]
pub struct Echo {
    /// Offset of the next block.
    next_block: usize,
}

impl Handler for Echo {
    #[inline]
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        let payload = call.payload();
        match call.method() {
            ECHO => reply.extend_from_slice(payload),
            HEAD => reply.extend_from_slice(&payload[..payload.len().min(8)]),
            WORK => work(payload)?,
            BLOCK => reply.extend_from_slice(self.block(payload)?),
            JOB => {
                work(payload.get(4..8).unwrap_or_default())?;
                reply.extend_from_slice(self.block(payload)?);
            }
            other => return Err(HandlerError::unknown_method(other)),
        }
        Ok(())
    }
}

impl Echo {
    fn block(&mut self, payload: &[u8]) -> Result<&'static [u8], HandlerError> {
        let len = payload.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize);
        let Some(len) = len.filter(|len| *len <= BLOCK_LEN_BYTES_MAX) else {
            return Err(HandlerError::new(
                BAD_BLOCK,
                "a request begins with four bytes: up to 8388608, little-endian",
            ));
        };
        let start = if self.next_block + len <= REGION_LEN_BYTES { self.next_block } else { 0 };
        self.next_block = (start + len).next_multiple_of(64);
        Ok(&REGION[start..start + len])
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
    use farcall::rpc::{CallError, Client, ClientOptions, Server};
    use farcall::{Nic, SoftNic};

    #[test]
    fn replies_with_each_preset_until_the_server_stops() {
        let nic = Nic::open(&SoftNic::new()).unwrap();
        for preset in farcall_link::PRESETS.iter().map(|preset| preset.name) {
            let server = Server::builder().start(&nic, |_| Echo::default()).unwrap();
            let options = ClientOptions::preset(preset).unwrap().reconnect(false);
            let mut client = Client::connect(&nic, server.address().to_string(), options).unwrap();
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
            for len in [0u32, 1, 4096, 100_000] {
                assert_eq!(call(BLOCK, &len.to_le_bytes()).unwrap(), vec![BLOCK_BYTE; len as usize]);
            }
            let job = [100u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
            assert_eq!(call(JOB, &[&job[..], &[0; 1000]].concat()).unwrap(), [BLOCK_BYTE; 100]);
            assert!(matches!(call(JOB, &job[..6]), Err(CallError::Application { code: BAD_WORK, .. })));
            let too_long = [u32::MAX.to_le_bytes(), 1u32.to_le_bytes()].concat();
            assert!(matches!(call(JOB, &too_long), Err(CallError::Application { code: BAD_BLOCK, .. })));
            for refused in [&b"abc"[..], &u32::MAX.to_le_bytes()] {
                assert!(matches!(call(BLOCK, refused), Err(CallError::Application { code: BAD_BLOCK, .. })));
            }
            assert!(matches!(call(99, b""), Err(CallError::Server { .. })));
            assert_eq!(call(ECHO, b"still there").unwrap(), b"still there");
            assert!(server.is_serving());
            server.drain();
            server.join();
            assert!(call(ECHO, b"gone").is_err());
        }
    }
}
