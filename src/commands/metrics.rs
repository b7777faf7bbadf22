//! `--metrics`: the counters of a server in Prometheus' text form, over HTTP. They lie in shared memory anyway, as for
//! `farcall stats`; a thread of its own reads them when somebody asks, and servers' threads never know.

use crate::commands::kv::resolve;
use crate::failure::Failure;
use clap::Args;
use farcall::stats::{prometheus, read_pid};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// A request is a line and some headers.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Who asks is served one after another, and has so long.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where metrics are told.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// Tell counters and histograms to Prometheus on this address (GET /metrics). There is no authentication: bind it to
    /// an address you trust.
    #[arg(long, value_name = "HOST:PORT", value_parser = resolve)]
    metrics: Option<SocketAddr>,
}

impl MetricsArgs {
    /// Starts to answer, as long as the process lives; returns where, if it was asked for.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub fn start(&self) -> Result<Option<SocketAddr>, Failure> {
        let Some(address) = self.metrics else { return Ok(None) };
        let cannot = |error: io::Error| {
            Failure::because("cannot tell metrics", &error)
                .at(address)
                .remedy("choose another address with --metrics, or stop what uses this one")
        };
        let listener = TcpListener::bind(address).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        std::thread::Builder::new().name("metrics".into()).spawn(move || serve(&listener)).map_err(cannot)?;
        Ok(Some(address))
    }
}

fn serve(listener: &TcpListener) {
    for client in listener.incoming() {
        match client {
            // What it cannot be told is its own affair.
            Ok(client) => drop(answer(client)),
            // A shortage of descriptors, say: not in a hurry.
            Err(_) => std::thread::sleep(PATIENCE),
        }
    }
}

fn answer(mut client: TcpStream) -> io::Result<()> {
    client.set_write_timeout(Some(PATIENCE))?;
    let request = read_request(&mut client)?;
    let (status, body) = match request.as_str() {
        "GET /metrics" => match read_pid(std::process::id()) {
            Ok(report) => ("200 OK", prometheus(&report)),
            Err(error) => ("503 Service Unavailable", format!("{error}\n")),
        },
        "GET /" => ("200 OK", "farcall: GET /metrics\n".to_owned()),
        _ => ("404 Not Found", "farcall: GET /metrics\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    client.write_all(&[head.as_bytes(), body.as_bytes()].concat())
}

/// The method and path of a request, once its headers have come.
fn read_request(client: &mut TcpStream) -> io::Result<String> {
    let until = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() >= REQUEST_BYTES_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
        let mut part = [0; 1024];
        match client.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            got => request.extend_from_slice(&part[..got]),
        }
    }
    let text = String::from_utf8_lossy(&request);
    let mut words = text.split([' ', '?', '\r']);
    Ok(format!("{} {}", words.next().unwrap_or_default(), words.next().unwrap_or_default()))
}
