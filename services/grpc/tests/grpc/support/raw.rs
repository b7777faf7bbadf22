//! An end that composes frames directly.

use std::net::SocketAddr;
use std::time::Duration;

use farcall_grpc::frame::hello::{HELLO_BYTES, VERSION_MAX, VERSION_MIN};
use farcall_grpc::frame::{Frame, HEAD_BYTES, Head, Hello, Kind, Path, Writer, metadata};
use farcall_stream::{AsyncStream, StreamOptions};
use http::HeaderMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub const HELLO: Hello =
    Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, calls_max: 64, window_bytes: 64 << 10 };

pub async fn connect(address: SocketAddr) -> AsyncStream {
    let options = StreamOptions::default().connect_timeout(Duration::from_secs(30));
    AsyncStream::connect(&super::nic(), address, options).await.unwrap()
}

/// Sends a hello and returns that of the other end, if it sends one.
pub async fn exchange_hellos(stream: &mut AsyncStream, hello: Hello) -> Option<Hello> {
    stream.write_all(&hello.encode()).await.ok()?;
    let mut bytes = [0; HELLO_BYTES];
    stream.read_exact(&mut bytes).await.ok()?;
    Hello::parse(&bytes).ok()
}

/// Returns the next frame, if there is one.
pub async fn next(stream: &mut AsyncStream) -> Option<(Head, Vec<u8>)> {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head).await.ok()?;
    let head = Head::parse(&head).unwrap();
    let mut payload = vec![0; head.len_bytes];
    stream.read_exact(&mut payload).await.ok()?;
    Frame::parse(head, &payload).unwrap();
    Some((head, payload))
}

/// Returns the frame of a complete unary call with an empty message.
pub fn call(number: u16, path: &str, metadata: &HeaderMap) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = Writer::begin(&mut out, Kind::Call, number);
    writer.path(Path::Literal(path));
    writer.block(|out| metadata::write(metadata, out));
    writer.put(&[0; 5]);
    writer.end();
    writer.finish(0);
    out
}
