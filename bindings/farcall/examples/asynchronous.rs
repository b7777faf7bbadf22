//! Many tasks of a tokio runtime share one connection; their calls are outstanding together.
//!
//!     cargo run -p farcall --example asynchronous

use std::time::Duration;

use farcall::rpc::{AsyncClient, Call, ClientOptions, Reply, Server};
use farcall::{Nic, SoftNic};

const SQUARE: u16 = 1;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The server has its own threads, and needs no runtime.
    let square = |call: &Call<'_>, reply: &mut Reply<'_>| {
        let number = u64::from_le_bytes(call.payload().try_into().unwrap_or_default());
        reply.extend_from_slice(&number.wrapping_mul(number).to_le_bytes());
        Ok(())
    };
    let nic = Nic::open(&SoftNic::new())?;
    let server = Server::builder().start(&nic, move |_thread| square)?;

    let address = server.address().to_string();
    let client = AsyncClient::connect(&nic, address, ClientOptions::default()).await?;

    // Clones share the connection. A task that awaits a result yields the thread to the others.
    let tasks: Vec<_> = (0..100u64)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                let reply = client.call(SQUARE, &number.to_le_bytes()).await?;
                assert_eq!(reply, (number * number).to_le_bytes());
                Ok::<(), farcall::rpc::CallError>(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    println!("100 calls over one connection");

    // Dropping the future cancels its call, here because of the timeout.
    let call = client.call(SQUARE, &[0; 8]);
    match tokio::time::timeout(Duration::from_secs(1), call).await {
        Ok(reply) => println!("a late call took less than a second: {} bytes", reply?.len()),
        Err(_) => println!("the call was given up after a second"),
    }

    drop(client);
    server.drain();
    server.join();
    Ok(())
}
