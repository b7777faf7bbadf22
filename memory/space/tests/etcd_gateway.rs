//! Errors of servers that are not etcd, or that refuse. The servers in this file send the response that a test defines.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use farcall_memory::membership::{Directory, EtcdError};

/// Starts a server that sends the same response to each request.
fn answers(status: &'static str, body: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = reply(stream.unwrap(), status, &body);
        }
    });
    address
}

fn reply(stream: TcpStream, status: &str, body: &str) -> std::io::Result<()> {
    let (mut reader, mut len_bytes) = (BufReader::new(&stream), 0);
    for line in (&mut reader).lines() {
        let line = line?.to_lowercase();
        if let Some(length) = line.strip_prefix("content-length:") {
            len_bytes = length.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    reader.read_exact(&mut vec![0; len_bytes])?;
    write!(&stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

fn directory(endpoints: &[SocketAddr]) -> Directory {
    let endpoints: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
    format!("etcd://{}/cluster", endpoints.join(",")).parse().unwrap()
}

/// Returns an address at which no process listens.
fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A response of etcd: `/farcall/memory/v1/cluster/nodes/10.0.0.1:11500`, with `{"version":1}`.
const NODE: &str = r#"{"header":{"revision":"2"},"kvs":[{
    "key":"L2ZhcmNhbGwvbWVtb3J5L3YxL2NsdXN0ZXIvbm9kZXMvMTAuMC4wLjE6MTE1MDA=",
    "create_revision":"2","value":"eyJ2ZXJzaW9uIjoxfQ=="}],"count":"1"}"#;

#[test]
fn needs_one_reachable_etcd_server() {
    let good = answers("200 OK", NODE.to_owned());
    let leaderless = answers("503 Service Unavailable", "{}".to_owned());
    let found = directory(&[nobody(), leaderless, good]).nodes().unwrap();
    assert_eq!(found, ["10.0.0.1:11500".parse().unwrap()]);
    let error = directory(&[nobody(), leaderless]).nodes().unwrap_err();
    assert!(matches!(error, EtcdError::Unreachable(_)), "{error}");
    let error = error.to_string();
    assert!(error.contains("no etcd server answers") && error.contains("503"), "{error}");
}

#[test]
fn reports_a_refusal_verbatim() {
    let refusing = answers("400 Bad Request", r#"{"error":"etcdserver: user name is empty"}"#.to_owned());
    let error = directory(&[refusing]).nodes().unwrap_err().to_string();
    assert!(error.contains("refuses: etcdserver: user name is empty"), "{error}");
    let without_words = answers("404 Not Found", "<html>".to_owned());
    let error = directory(&[without_words]).nodes().unwrap_err().to_string();
    assert!(error.contains("refuses: 404"), "{error}");
}

#[test]
fn rejects_a_server_that_is_not_etcd() {
    for body in ["hello", "[]", r#"{"kvs":[{"key":"??"}]}"#, r#"{"kvs":{}}"#] {
        let error = directory(&[answers("200 OK", body.to_owned())]).nodes().unwrap_err();
        assert!(matches!(error, EtcdError::NotEtcd { .. }), "{body}: {error}");
    }
    let error = directory(&[answers("200 OK", "x".repeat(9 << 20))]).nodes().unwrap_err();
    assert!(matches!(error, EtcdError::Unreachable(_)), "an answer without end is not read: {error}");
}

#[test]
fn ignores_keys_not_written_by_a_node() {
    let other = NODE.replace("eyJ2ZXJzaW9uIjoxfQ==", "eyJ2ZXJzaW9uIjoyfQ==");
    assert_eq!(directory(&[answers("200 OK", other)]).nodes().unwrap(), []);
    let elsewhere = NODE.replace("\"L2ZhcmNhbGw", "\"L2ZhcmNhbGx");
    assert_eq!(directory(&[answers("200 OK", elsewhere)]).nodes().unwrap(), []);
}
