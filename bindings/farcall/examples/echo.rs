//! A server and a client of remote calls: methods are numbers, requests and replies are bytes.
//!
//!     cargo run -p farcall --example echo
//!
//! Both ends are in this process; a client in another process needs only the address. `SoftNic` is the software RNIC,
//! for processes of this host. With `farcall::Ibv::new()` instead the same program runs over any RNIC.

use farcall::rpc::{Call, Client, ClientOptions, HandlerError, Reply, Server};
use farcall::{Nic, SoftNic};

const ECHO: u16 = 1;
const UPPER: u16 = 2;

/// Runs on a server thread, one call at a time. The request is a private copy; the reply is written directly to the
/// slot from which the client fetches it.
fn handle(call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
    match call.method() {
        ECHO => reply.extend_from_slice(call.payload()),
        UPPER => call.payload().iter().for_each(|byte| reply.extend_from_slice(&[byte.to_ascii_uppercase()])),
        other => return Err(HandlerError::unknown_method(other)),
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two threads, each with its own handler, on a free port of the loopback interface. The port carries the
    // handshake; calls use RDMA WRITE and READ.
    let nic = Nic::open(&SoftNic::new())?;
    let server = Server::builder().threads(2).start(&nic, |_thread| handle)?;
    println!("serving on {}", server.address());

    // A client of the first thread.
    let address = server.address().to_string();
    let mut client = Client::connect(&nic, address, ClientOptions::default())?;
    let mut reply = Vec::new();
    client.call(ECHO, b"hello", &mut reply)?;
    assert_eq!(reply, b"hello");

    // Several calls at once: submit them, then process the completions in any order.
    let words = [&b"remote"[..], b"direct", b"memory", b"access"];
    for word in words {
        client.submit(UPPER, word)?;
    }
    for _ in words {
        let completion = client.wait()?;
        println!("{}", String::from_utf8_lossy(completion.result?));
    }

    // A graceful end: calls received so far are executed, then the threads end.
    server.drain();
    server.join();
    Ok(())
}
