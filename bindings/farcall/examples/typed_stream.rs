//! A typed method whose results are a stream.
//!
//!     cargo run -p farcall --example typed_stream

use farcall::rpc::{ClientOptions, Server};
use farcall::{Nic, SoftNic};

#[farcall::service]
trait Counter {
    fn count(&self, from: u64) -> Result<impl Iterator<Item = u64> + Send + 'static, String>;
}

struct Patient;

impl Counter for Patient {
    fn count(&self, from: u64) -> Result<impl Iterator<Item = u64> + Send + 'static, String> {
        Ok(from..)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nic = Nic::open(&SoftNic::new())?;
    let server = Server::builder().serve(&nic, CounterServer::new(Patient))?;
    let address = server.address().to_string();
    let mut counter = CounterClient::connect(&nic, address, ClientOptions::default())?;
    let some: Vec<u64> = counter.count(40)?.take(3).collect::<Result<_, _>>()?;
    assert_eq!(some, [40, 41, 42]);
    Ok(())
}
