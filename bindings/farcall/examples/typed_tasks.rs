//! Typed methods that wait, and clients in tasks.
//!
//!     cargo run -p farcall --example typed_tasks

use std::time::Duration;

use farcall::rpc::{CallOptions, ClientOptions, Server};
use farcall::{Nic, SoftNic};

#[farcall::service]
trait Timer {
    async fn sleep(&self, ms: u64) -> Result<u64, String>;
}

struct Clock;

impl Timer for Clock {
    async fn sleep(&self, ms: u64) -> Result<u64, String> {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        Ok(ms)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nic = Nic::open(&SoftNic::new())?;
    let server = Server::builder().serve(&nic, TimerServer::new(Clock))?;
    let address = server.address().to_string();
    let timer = TimerAsyncClient::connect(&nic, address, ClientOptions::default()).await?;
    let hurried = timer.with_options(CallOptions::new().timeout(Duration::from_millis(50)));
    let (slow, quick) = tokio::join!(hurried.sleep(3_600_000), timer.sleep(1));
    assert_eq!(quick?, 1);
    assert!(slow.is_err());
    Ok(())
}
