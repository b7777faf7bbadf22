//! The client under tokio.
#![cfg(feature = "tokio")]

use std::time::Duration;

use farcall_rpc::*;
use farcall_softnic::SoftNic;

fn echo(call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
    reply.extend_from_slice(call.payload());
    Ok(())
}

fn server() -> Server {
    Server::builder().start(&SoftNic::new(), |_| echo).unwrap()
}

async fn connect(server: &Server) -> AsyncClient {
    let options = ClientOptions { connect_timeout: Duration::from_secs(20), ..ClientOptions::default() };
    AsyncClient::connect(&SoftNic::new(), server.address().to_string(), options).await.unwrap()
}

#[tokio::test]
async fn more_tasks_than_the_window_share_a_connection() {
    for (preset, server) in [("rf-rpc", server()), ("server-reply", server())] {
        let options = ClientOptions::preset(preset).unwrap();
        let address = server.address().to_string();
        let client = AsyncClient::connect(&SoftNic::new(), address, options).await.unwrap();
        let tasks: Vec<_> = (0..100u32)
            .map(|i| {
                let client = client.clone();
                tokio::spawn(async move { client.call(1, &vec![i as u8; i as usize * 100]).await })
            })
            .collect();
        for (i, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap().unwrap(), vec![i as u8; i * 100]);
        }
    }
}

#[tokio::test]
async fn a_dropped_future_disturbs_nobody() {
    let server = server();
    let client = connect(&server).await;
    for i in 0..50u8 {
        let dropped = client.call(1, b"dropped");
        let _ = tokio::time::timeout(Duration::ZERO, dropped).await;
        assert_eq!(client.call(1, &[i]).await.unwrap(), [i]);
    }
}

#[tokio::test]
async fn a_server_that_ends_ends_the_calls() {
    let server = server();
    let options = ClientOptions { reconnect: false, ..ClientOptions::default() };
    let address = server.address().to_string();
    let client = AsyncClient::connect(&SoftNic::new(), address, options).await.unwrap();
    assert_eq!(client.call(1, b"x").await.unwrap(), b"x");
    drop(server);
    assert!(client.call(1, b"y").await.is_err());
}
