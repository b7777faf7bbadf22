//! `--metrics`: the counters of a server in Prometheus' text format over HTTP. The counters are in shared memory, as
//! for `farcall stats`; one thread reads them on request, without involving the server's threads.

mod exchange;
mod listener;

use crate::commands::kv::resolve;
use crate::failure::Failure;
use clap::Args;
use listener::MetricsListener;
use std::io;
use std::net::{SocketAddr, TcpListener};

/// Address of metrics.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// Serve counters and histograms for Prometheus at this address (GET /metrics). There is no authentication: bind it
    /// only to an address that you trust.
    #[arg(long, value_name = "HOST:PORT", value_parser = resolve)]
    metrics: Option<SocketAddr>,
}

impl MetricsArgs {
    /// Returns the option as another process of this program takes it.
    #[cfg(feature = "full")]
    pub fn to_argument(&self) -> Option<String> {
        self.metrics.map(|address| format!("--metrics={address}"))
    }

    /// Starts serving until the process exits. Returns the address, if one was given.
    ///
    /// # Errors
    /// If the address cannot be used.
    pub fn start(&self) -> Result<Option<SocketAddr>, Failure> {
        let Some(address) = self.metrics else { return Ok(None) };
        let cannot = |error: io::Error| {
            Failure::because("cannot serve metrics", &error)
                .at(address)
                .remedy("choose another address with --metrics, or stop the process that uses this one")
        };
        let socket = TcpListener::bind(address).map_err(cannot)?;
        let address = socket.local_addr().map_err(cannot)?;
        let mut listener = MetricsListener::new(socket).map_err(cannot)?;
        std::thread::Builder::new().name("metrics".into()).spawn(move || listener.run()).map_err(cannot)?;
        Ok(Some(address))
    }
}
