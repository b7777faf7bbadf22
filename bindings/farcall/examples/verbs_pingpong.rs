//! A ping-pong between two processes by SEND, in safe Rust: this one, and this program started again.
//!
//!     cargo run -p farcall --features verbs --example verbs_pingpong

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use farcall::verbs::owned::{Address, Buffers, Completion, Pair, Transport};
use farcall::{Nic, SoftNic};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const ROUNDS: u32 = 1000;

fn main() -> Result<()> {
    if let Some(place) = std::env::args().nth(1) {
        return play(TcpStream::connect(place)?, false);
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let place = listener.local_addr()?.to_string();
    let mut other = Command::new(std::env::current_exe()?).arg(place).spawn()?;
    play(listener.accept()?.0, true)?;
    assert!(other.wait()?.success());
    println!("{ROUNDS} rounds between two processes, without unsafe");
    Ok(())
}

/// Runs one end, which begins or replies.
fn play(mut socket: TcpStream, begins: bool) -> Result<()> {
    let nic = Nic::open(&SoftNic::new())?;
    let buffers = Buffers::new(&nic, 8, 64)?;
    let mut pair = Pair::new(&nic, Transport::Rc, &buffers)?;
    // The receive is posted before the peer can send.
    pair.post_receive(buffers.take().ok_or("no buffer")?)?;

    // Any channel can carry the addresses.
    socket.write_all(&pair.address().to_bytes())?;
    let mut bytes = [0; Address::LEN_BYTES];
    socket.read_exact(&mut bytes)?;
    pair.connect(&Address::from_bytes(&bytes)?)?;
    // Neither end sends before both are connected.
    socket.write_all(b".")?;
    socket.read_exact(&mut [0])?;

    if begins {
        ping(&mut pair, &buffers, 0)?;
    }
    let (mut received, mut under_way) = (0, u32::from(begins));
    while received < ROUNDS || under_way > 0 {
        match pair.wait(None)?.ok_or("no time limit")? {
            Completion::Done(_) => under_way -= 1,
            Completion::Received { buffer, payload, .. } => {
                assert_eq!(buffer.to_vec(payload), received.to_le_bytes());
                received += 1;
                pair.post_receive(buffer)?;
                let next = if begins { received } else { received - 1 };
                if next < ROUNDS {
                    ping(&mut pair, &buffers, next)?;
                    under_way += 1;
                }
            }
            Completion::Ended { failure, .. } => return Err(format!("the pair failed: {failure:?}").into()),
        }
    }
    // Each end exits only after the peer has received all messages.
    socket.write_all(b".")?;
    socket.read_exact(&mut [0])?;
    Ok(())
}

fn ping(pair: &mut Pair, buffers: &Buffers, round: u32) -> Result<()> {
    let mut buffer = buffers.take().ok_or("no buffer")?;
    buffer.write(0, &round.to_le_bytes());
    Ok(pair.send(buffer, 4)?)
}
