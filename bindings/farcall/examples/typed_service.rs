//! A complete typed service: a trait, its implementation, a server, a client.
//!
//!     cargo run -p farcall --example typed_service

use farcall::rpc::{ClientOptions, Server};
use farcall::{Nic, SoftNic};

#[farcall::service]
trait Greeter {
    fn hello(&self, name: String) -> Result<String, String>;
}

struct Polite;

impl Greeter for Polite {
    fn hello(&self, name: String) -> Result<String, String> {
        if name.is_empty() { Err("who are you?".into()) } else { Ok(format!("hello, {name}")) }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nic = Nic::open(&SoftNic::new())?;
    let server = Server::builder().serve(&nic, GreeterServer::new(Polite))?;
    let address = server.address().to_string();
    let mut greeter = GreeterClient::connect(&nic, address, ClientOptions::default())?;
    println!("{}", greeter.hello("world".into())?);
    println!("{}", greeter.hello(String::new()).unwrap_err());
    Ok(())
}
