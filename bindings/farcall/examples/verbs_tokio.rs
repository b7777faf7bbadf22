//! Verbs under tokio, in safe Rust: one task sends a request, another one replies; completions wake them.
//!
//!     cargo run -p farcall --features verbs,tokio --example verbs_tokio

use farcall::verbs::owned::{AsyncPair, Buffers, Completion, Pair, Transport};
use farcall::{Nic, SoftNic};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let nic = Nic::open(&SoftNic::new())?;
    let buffers = Buffers::new(&nic, 8, 64)?;
    let (mut client, mut server) =
        (Pair::new(&nic, Transport::Rc, &buffers)?, Pair::new(&nic, Transport::Rc, &buffers)?);
    client.connect(&server.address())?;
    server.connect(&client.address())?;
    let (mut client, mut server) = (AsyncPair::new(client)?, AsyncPair::new(server)?);
    for pair in [&mut client, &mut server] {
        pair.post_receive(buffers.take().ok_or("no buffer")?)?;
    }
    let answer = async {
        let (request, _) = next_message(&mut server).await?;
        send(&mut server, &buffers, request.to_ascii_uppercase().as_bytes())?;
        // The completion shows that the client has received the reply.
        match server.completion().await? {
            Completion::Done(_) => Ok::<(), Box<dyn std::error::Error>>(()),
            other => Err(format!("{other:?}").into()),
        }
    };
    let ask = async {
        send(&mut client, &buffers, b"remote direct memory access")?;
        next_message(&mut client).await
    };
    let (answered, asked) = tokio::join!(answer, ask);
    answered?;
    println!("{}", asked?.0);
    Ok(())
}

fn send(pair: &mut AsyncPair, buffers: &Buffers, bytes: &[u8]) -> Result<()> {
    let mut buffer = buffers.take().ok_or("no buffer")?;
    buffer.write(0, bytes);
    Ok(pair.send(buffer, bytes.len())?)
}

/// Returns the next message, and the number of sends that completed before it.
async fn next_message(pair: &mut AsyncPair) -> Result<(String, u32)> {
    let mut ended = 0;
    loop {
        match pair.completion().await? {
            Completion::Received { buffer, payload, .. } => {
                return Ok((String::from_utf8(buffer.to_vec(payload))?, ended));
            }
            Completion::Done(_) => ended += 1,
            Completion::Ended { failure, .. } => return Err(format!("the pair failed: {failure:?}").into()),
        }
    }
}
