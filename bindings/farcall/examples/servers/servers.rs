//! Servers in Rust for tests in other languages: a store; remote calls, of which method 1 returns its request, method 2
//! refuses with 42 "no", and method 3 takes a second; streams that echo.

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use farcall::Nic;
use farcall::SoftNic;
use farcall::kv::KvServer;
use farcall::rpc::{Call, HandlerError, Reply, Server};
use farcall::stream::{StreamListener, StreamOptions};

/// The servers; dropping them stops the store and the remote calls.
pub struct Servers {
    kv: KvServer,
    rpc: Server,
    stream: String,
}

impl Servers {
    pub fn start() -> Self {
        let nic = Nic::open(&SoftNic::new()).unwrap();
        let kv = KvServer::builder().partitions(2).rpc("127.0.0.1:0".parse().unwrap(), &nic).start().unwrap();
        let rpc = Server::builder().start(&nic, |_| handle).unwrap();
        Self { kv, rpc, stream: echoing() }
    }

    /// Returns the addresses of the store, of remote calls, and of streams.
    pub fn addresses(&self) -> [String; 3] {
        [self.kv.rpc_address().unwrap().to_string(), self.rpc.address().to_string(), self.stream.clone()]
    }
}

fn handle(call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
    match call.method() {
        1 => reply.extend_from_slice(call.payload()),
        2 => return Err(HandlerError::new(42, "no")),
        // Longer than the deadline of the call, so that the deadline passes first.
        3 => thread::sleep(Duration::from_secs(1)),
        other => return Err(HandlerError::unknown_method(other)),
    }
    Ok(())
}

/// Starts a listener whose streams echo, and returns its address. It ends with the process.
fn echoing() -> String {
    let nic = Nic::open(&SoftNic::new()).unwrap();
    let mut listener = StreamListener::bind(&nic, "127.0.0.1:0", StreamOptions::default()).unwrap();
    let address = listener.address().unwrap().to_string();
    thread::spawn(move || {
        while let Ok(mut stream) = listener.accept() {
            thread::spawn(move || {
                let mut bytes = [0; 256];
                while let Ok(len) = stream.read(&mut bytes)
                    && len > 0
                    && stream.write_all(&bytes[..len]).is_ok()
                {}
            });
        }
    });
    address
}
