//! A complete typed service: a trait, its implementation, a server, a client.
//!
//!     cargo run -p farcall --example typed_service

use farcall::SoftNic;
use farcall::rpc::{ClientOptions, Server};

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
    let server = Server::builder().serve(&SoftNic::new(), GreeterServer::new(Polite))?;
    let address = server.address().to_string();
    let mut greeter = GreeterClient::connect(&SoftNic::new(), address, ClientOptions::default())?;
    println!("{}", greeter.hello("world".into())?);
    println!("{}", greeter.hello(String::new()).unwrap_err());
    Ok(())
}
