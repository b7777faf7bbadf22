//! Calls that end early: deadlines, cancellation, panics.

use std::time::Duration;

use farcall_grpc::frame::{Frame, metadata};
use http::HeaderMap;
use tokio_stream::StreamExt;
use tonic::{Code, Request, Status};

use super::support::service::{ANSWER_AT_ONCE, PANIC, SPAWN, WAIT, count, message, told};
use super::support::{Running, Transport, over_each, raw, soon, until};

/// Over HTTP/2 tonic returns `Cancelled`, although the specification requires another code.
fn is_late(server: &Running, status: &Status) -> bool {
    match server.transport {
        Transport::Native | Transport::Direct => status.code() == Code::DeadlineExceeded,
        _ => matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded),
    }
}

#[tokio::test]
async fn cancels_a_method_when_its_deadline_expires() {
    over_each(async |server, service, mut client| {
        let mut request = told(WAIT, message("", 0));
        request.set_timeout(Duration::from_millis(50));
        let status = client.unary(request).await.unwrap_err();
        assert!(is_late(&server, &status), "{status:?}");
        // The method may not have started.
        until(|| count(&service.dropped) == count(&service.begun)).await;
    })
    .await;
}

#[tokio::test]
async fn a_deadline_that_does_not_pass_changes_nothing() {
    over_each(async |_server, _service, mut client| {
        let mut request = Request::new(message("in time", 0));
        request.set_timeout(Duration::from_secs(600));
        assert_eq!(client.unary(request).await.unwrap().into_inner(), message("in time", 0));
    })
    .await;
}

#[tokio::test]
async fn a_deadline_holds_for_the_whole_stream_of_answers() {
    over_each(async |server, service, mut client| {
        if !server.transport.has_frames() {
            // With HTTP/2 the deadline ends with the first response.
            return;
        }
        let never = tokio_stream::once(message("one", 0)).chain(tokio_stream::pending());
        let mut request = Request::new(never);
        request.set_timeout(Duration::from_millis(300));
        // If the device's first connection takes long, even the beginning of the response may be late.
        if let Ok(answers) = client.converse(request).await {
            let mut answers = answers.into_inner();
            let late = loop {
                match answers.next().await.unwrap() {
                    Ok(answer) => assert_eq!(answer, message("one", 0)),
                    Err(late) => break late,
                }
            };
            assert_eq!(late.code(), Code::DeadlineExceeded);
        }
        until(|| count(&service.dropped) == 2 * count(&service.begun)).await;
    })
    .await;
}

/// A client that does not enforce the deadline itself.
#[tokio::test]
async fn a_server_keeps_deadlines_by_itself() {
    let service = super::support::service::Behaviour::default();
    let routes = tonic::service::Routes::new(farcall_echo::v1::echo_server::EchoServer::new(service.clone()));
    let server = Running::start(Transport::Native, routes).await;
    let mut stream = raw::connect(server.address).await;
    raw::exchange_hellos(&mut stream, raw::HELLO).await.unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("do", http::HeaderValue::from_static(WAIT));
    headers.insert("grpc-timeout", http::HeaderValue::from_static("20m"));
    tokio::io::AsyncWriteExt::write_all(&mut stream, &raw::call(5, "/farcall.echo.v1.Echo/Unary", &headers))
        .await
        .unwrap();
    let (head, payload) = soon(raw::next(&mut stream)).await.unwrap();
    assert_eq!(head.call, 5);
    let Frame::Response { metadata, is_end: true, .. } = Frame::parse(head, &payload).unwrap() else {
        panic!("{head:?}");
    };
    let status = Status::from_header_map(&metadata::read(metadata).unwrap()).unwrap();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    until(|| count(&service.dropped) == 1).await;
}

#[tokio::test]
async fn drops_the_method_of_a_cancelled_call() {
    over_each(async |_server, service, mut client| {
        {
            let mut waiting = std::pin::pin!(client.unary(told(WAIT, message("", 0))));
            let begun = until(|| count(&service.begun) == 1);
            tokio::select! {
                answer = &mut waiting => panic!("{answer:?}"),
                () = begun => {}
            }
            assert_eq!(count(&service.dropped), 0);
        }
        until(|| count(&service.dropped) == 1).await;
        client.unary(message("", 0)).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_stream_of_answers_that_is_dropped_is_dropped_at_the_server() {
    over_each(async |server, service, mut client| {
        let mut answers = client.repeat(message("one", u32::MAX)).await.unwrap().into_inner();
        assert_eq!(answers.next().await.unwrap().unwrap(), message("one", 0));
        let before = count(&service.dropped);
        drop(answers);
        until(|| count(&service.dropped) > before).await;
        client.unary(message("", 0)).await.unwrap();
        if !server.transport.has_frames() {
            // With HTTP/2 an unfinished request keeps the call open.
            return;
        }
        let never = tokio_stream::once(message("one", 0)).chain(tokio_stream::pending());
        let mut answers = client.converse(never).await.unwrap().into_inner();
        assert_eq!(answers.next().await.unwrap().unwrap(), message("one", 0));
        let before = count(&service.dropped);
        drop(answers);
        until(|| count(&service.dropped) > before).await;
        client.unary(message("", 0)).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_server_may_answer_before_it_has_read_all() {
    over_each(async |_server, _service, mut client| {
        for _ in 0..5 {
            let endless = tokio_stream::iter(std::iter::repeat_with(|| message(vec![1; 10_000], 0)));
            let answer = client.collect(told(ANSWER_AT_ONCE, endless)).await;
            // Over HTTP/2 the client may first notice that its request is no longer read.
            if let Ok(answer) = answer {
                assert_eq!(answer.into_inner(), message("early", 0));
            }
        }
        client.unary(message("", 0)).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_method_that_panics_ends_its_call_alone() {
    over_each(async |server, _service, mut client| {
        if !server.transport.has_frames() {
            return;
        }
        let mut other = client.clone();
        let never = tokio_stream::once(message("one", 0)).chain(tokio_stream::pending());
        let mut answers = other.converse(never).await.unwrap().into_inner();
        assert_eq!(answers.next().await.unwrap().unwrap(), message("one", 0));
        let status = client.unary(told(PANIC, message("", 0))).await.unwrap_err();
        assert_eq!(status.code(), Code::Unknown);
        client.unary(message("", 0)).await.unwrap();
        let over = tokio::time::timeout(Duration::from_millis(5), answers.next()).await;
        assert!(over.is_err(), "the other call ended: {over:?}");
    })
    .await;
}

#[tokio::test]
async fn a_method_may_wait_for_tasks_on_the_same_thread() {
    over_each(async |_server, _service, client| {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let mut client = client.clone();
            tasks.spawn(async move {
                for _ in 0..5 {
                    client.unary(told(SPAWN, message("", 0))).await.unwrap();
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    })
    .await;
}

#[test]
fn a_failure_is_compared_as_a_whole() {
    // Other tests compare with this status: if it lacked a part, the loss of that part would not be detected.
    let failure = super::support::service::failure();
    assert!(!failure.details().is_empty() && !failure.metadata().is_empty());
}
