//! A byte stream between two ends: lines in one direction, their lengths in the other.
//!
//!     cargo run -p farcall --example stream
//!
//! Both ends are in this process; a client in another process needs only the address. The port carries the handshake;
//! the bytes are written by RDMA WRITE into a ring of the reader. `SoftNic` is the software RNIC, for processes of
//! this host; to another host the bytes are sent over TCP.

use std::io::{BufRead, BufReader, Read, Write};
use std::thread;

use farcall::Nic;
use farcall::SoftNic;
use farcall::stream::{StreamListener, StreamOptions, StreamSocket};

/// Replies to each line with its length, until the client finishes its direction.
fn serve(stream: StreamSocket) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        let answer = format!("{}\n", line.trim_end().len());
        lines.get_mut().write_all(answer.as_bytes())?;
        line.clear();
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nic = Nic::open(&SoftNic::new())?;
    let mut listener = StreamListener::bind(&nic, "127.0.0.1:0", StreamOptions::default())?;
    let address = listener.address()?;
    println!("listening on {address}");
    let server = thread::spawn(move || serve(listener.accept()?));

    let mut stream = StreamSocket::connect(&nic, address, StreamOptions::default())?;
    stream.write_all(b"remote\ndirect\nmemory\naccess\n")?;
    // A message may be composed in the memory from which it is sent.
    stream.operate(None, |stream| {
        stream.write_with(16, |space| {
            space.put(b"in place\n");
        })
    })?;
    // Each direction ends separately: the replies still arrive.
    stream.finish()?;
    let mut answers = String::new();
    stream.read_to_string(&mut answers)?;
    assert_eq!(answers, "6\n6\n6\n6\n8\n");
    print!("{answers}");

    server.join().expect("the server does not panic")?;
    Ok(())
}
