//! Errors of typed methods, and whether a failed call was executed.
//!
//!     cargo run -p farcall --example typed_errors

use farcall::rpc::service::Failed;
use farcall::rpc::{ClientOptions, Executed, Server};
use farcall::{Nic, SoftNic};
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum AccountError {
    Empty { left: u64 },
}

#[farcall::service]
trait Account {
    fn take(&self, amount: u64) -> Result<u64, AccountError>;
}

struct Poor;

impl Account for Poor {
    fn take(&self, amount: u64) -> Result<u64, AccountError> {
        if amount > 5 { Err(AccountError::Empty { left: 5 }) } else { Ok(5 - amount) }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nic = Nic::open(&SoftNic::new())?;
    let server = Server::builder().serve(&nic, AccountServer::new(Poor))?;
    let address = server.address().to_string();
    let mut account = AccountClient::connect(&nic, address, ClientOptions::default())?;
    let failed = account.take(7).unwrap_err();
    assert_eq!(failed, Failed::Service(AccountError::Empty { left: 5 }));
    assert_eq!(failed.executed(), Executed::Yes);
    Ok(())
}
