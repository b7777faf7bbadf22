//! A server and a client of remote calls: methods are numbers, requests and replies are bytes.
//!
//!     cargo run -p farcall --example echo
//!
//! Both ends are in this process; a client in another one needs only the address. `SoftNic` is the software RNIC:
//! processes of this host. With `farcall::Ibv::new()` in its place the same program runs over any RNIC.

use farcall::SoftNic;
use farcall::rpc::{Call, Client, ClientOptions, HandlerError, Reply, Server};

const ECHO: u16 = 1;
const UPPER: u16 = 2;

/// Runs on a server thread, one call at a time. The request is a private copy; the reply is written where the client
/// takes it from.
fn handle(call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
    match call.method() {
        ECHO => reply.extend_from_slice(call.payload()),
        UPPER => call.payload().iter().for_each(|byte| reply.extend_from_slice(&[byte.to_ascii_uppercase()])),
        other => return Err(HandlerError::unknown_method(other)),
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two threads, each with a handler of its own, on a free port of the loopback interface. The port carries the
    // handshake; calls go by RDMA WRITE and READ.
    let server = Server::builder().threads(2).start(&SoftNic::new(), |_thread| handle)?;
    println!("serving on {}", server.address());

    // A client of the first thread.
    let address = server.address().to_string();
    let mut client = Client::connect(&SoftNic::new(), address, ClientOptions::default())?;
    let mut reply = Vec::new();
    client.call(ECHO, b"hello", &mut reply)?;
    assert_eq!(reply, b"hello");

    // Several calls at once: submit them, then take the completions as they come.
    let words = [&b"remote"[..], b"direct", b"memory", b"access"];
    for word in words {
        client.submit(UPPER, word)?;
    }
    for _ in words {
        let completion = client.wait()?;
        println!("{}", String::from_utf8_lossy(completion.result?));
    }

    // A graceful end: what came is answered, then the threads end.
    server.drain();
    server.join();
    Ok(())
}
