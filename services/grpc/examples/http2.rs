//! A client and a server of tonic's own transport, with HTTP/2, over streams instead of TCP.
//!
//! `cargo run -p farcall-grpc --features http2 --example http2`

use farcall_grpc::http2::{Connector, Incoming};
use farcall_link::Nic;
use farcall_softnic::SoftNic;
use farcall_stream::StreamOptions;
use tonic::transport::{Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nic = Nic::open(&SoftNic::new())?;
    let incoming = Incoming::bind(&nic, "127.0.0.1:0", StreamOptions::default())?;
    let address = incoming.address()?;
    let (_reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(Server::builder().add_service(health).serve_with_incoming(incoming));

    let connector = Connector::new(&nic, address, StreamOptions::default());
    let channel =
        Endpoint::from_shared(format!("http://{address}"))?.connect_with_connector(connector).await?;
    let answer = HealthClient::new(channel).check(HealthCheckRequest::default()).await?.into_inner();
    println!("the server is {:?}", answer.status());
    Ok(())
}
