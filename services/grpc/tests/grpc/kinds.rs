//! Every kind of call, with metadata and status.

use http::HeaderMap;
use tokio_stream::StreamExt;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};

use super::support::service::{FAIL, failure, message, told};
use super::support::{Client, over_each};

pub async fn all_kinds(client: &mut Client, bytes: usize) {
    let payload = vec![7; bytes];
    let answer = client.unary(message(payload.clone(), 3)).await.unwrap().into_inner();
    assert_eq!(answer, message(payload.clone(), 3));

    let three = (0..3).map(|at| message(vec![at; bytes], 0)).collect::<Vec<_>>();
    let answer = client.collect(tokio_stream::iter(three.clone())).await.unwrap().into_inner();
    assert_eq!((answer.times, answer.payload.len()), (3, 3 * bytes));
    assert_eq!(&answer.payload[..], three.iter().flat_map(|m| m.payload.to_vec()).collect::<Vec<_>>());

    let mut answers = client.repeat(message(payload.clone(), 4)).await.unwrap().into_inner();
    for at in 0..4 {
        assert_eq!(answers.next().await.unwrap().unwrap(), message(payload.clone(), at));
    }
    assert!(answers.next().await.is_none());

    // Each message waits for the response to the previous one.
    let (send, sent) = tokio::sync::mpsc::channel(1);
    let requests = tokio_stream::wrappers::ReceiverStream::new(sent);
    send.send(message(payload.clone(), 0)).await.unwrap();
    let mut answers = client.converse(requests).await.unwrap().into_inner();
    for at in 1..5 {
        assert_eq!(answers.next().await.unwrap().unwrap(), message(payload.clone(), at - 1));
        send.send(message(payload.clone(), at)).await.unwrap();
    }
    drop(send);
    assert_eq!(answers.next().await.unwrap().unwrap(), message(payload, 4));
    assert!(answers.next().await.is_none());
}

#[tokio::test]
async fn calls_of_each_kind_are_answered() {
    over_each(async |_server, _service, mut client| {
        for bytes in [0, 64, 5_000, 700_000] {
            all_kinds(&mut client, bytes).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn calls_of_each_kind_are_answered_on_several_threads() {
    over_each(async |_server, _service, client| {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let mut client = client.clone();
            tasks.spawn(async move {
                for bytes in [0, 64, 5_000, 100_000] {
                    all_kinds(&mut client, bytes).await;
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn metadata_goes_both_ways() {
    over_each(async |_server, _service, mut client| {
        let mut request = Request::new(message("", 0));
        let metadata = request.metadata_mut();
        metadata.insert("x-plain", "some words, 0".parse().unwrap());
        metadata.insert("x-zero", "0".parse().unwrap());
        metadata.append("x-twice", "one".parse().unwrap());
        metadata.append("x-twice", "two".parse().unwrap());
        metadata.insert_bin("x-bytes-bin", MetadataValue::from_bytes(&[0, 1, 254, 255]));
        metadata.insert("x-long", "y".repeat(8_000).parse().unwrap());
        let answer = client.unary(request).await.unwrap();
        let metadata = answer.metadata();
        assert_eq!(metadata.get("x-plain").unwrap(), "some words, 0");
        assert_eq!(metadata.get("x-zero").unwrap(), "0");
        assert_eq!(metadata.get_all("x-twice").iter().collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(metadata.get_bin("x-bytes-bin").unwrap().to_bytes().unwrap(), &[0, 1, 254, 255][..]);
        assert_eq!(metadata.get("x-long").unwrap().len(), 8_000);
    })
    .await;
}

#[tokio::test]
async fn more_metadata_than_allowed_is_refused_and_the_next_call_runs() {
    over_each(async |_server, service, mut client| {
        let mut request = Request::new(message("", 0));
        request.metadata_mut().insert("x-long", "y".repeat(20_000).parse().unwrap());
        assert!(client.unary(request).await.is_err());
        assert_eq!(service.begun.load(std::sync::atomic::Ordering::SeqCst), 0);
        client.unary(message("", 0)).await.unwrap();
    })
    .await;
}

fn check(status: &Status) {
    let expected = failure();
    assert_eq!(status.code(), expected.code());
    assert_eq!(status.message(), expected.message());
    assert_eq!(status.details(), expected.details());
    let mut headers: HeaderMap = status.metadata().clone().into_headers();
    for name in ["date", "content-type"] {
        headers.remove(name);
    }
    assert_eq!(headers, expected.metadata().clone().into_headers());
}

#[tokio::test]
async fn returns_a_status_with_message_details_and_metadata() {
    over_each(async |_server, _service, mut client| {
        check(&client.unary(told(FAIL, message("", 0))).await.unwrap_err());
        let none = tokio_stream::empty();
        check(&client.collect(told(FAIL, none)).await.unwrap_err());

        // After messages, as trailers.
        let mut answers = client.repeat(told(FAIL, message("a", 3))).await.unwrap().into_inner();
        for _ in 0..3 {
            answers.next().await.unwrap().unwrap();
        }
        check(&answers.next().await.unwrap().unwrap_err());
    })
    .await;
}

#[tokio::test]
async fn a_method_that_is_not_there_is_unimplemented() {
    over_each(async |server, _service, _client| {
        let mut client = tonic_health::pb::health_client::HealthClient::new(server.channel().await);
        let request = tonic_health::pb::HealthCheckRequest::default();
        assert_eq!(client.check(request).await.unwrap_err().code(), Code::Unimplemented);
    })
    .await;
}
