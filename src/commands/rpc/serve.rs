//! `farcall rpc serve`: the echo service.

use crate::commands::config_arg::ConfigArg;
use crate::commands::kv::resolve;
use crate::commands::metrics::MetricsArgs;
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::echo::Echo;
use crate::failure::{Exit, Failure};
use crate::open_files::{self, Serves};
use crate::signals::StopFlag;
use clap::Args;
use farcall::rpc::Server;
use farcall_bench::experiments::ready::Ready;
use farcall_bench::experiments::server::count_allocations_for_parent;
use farcall_drive::limit_retained_memory;
use std::net::SocketAddr;

/// Serve an echo service.
///
/// Method 1 replies with the request, method 2 with its first 8 bytes. Method 3 computes for the number of microseconds
/// in the request, method 4 replies with the number of bytes in the request, and method 5 does both. Runs until SIGINT
/// or SIGTERM, then completes the calls that it received, and exits. TCP is used only for the handshake; calls use RDMA
/// verbs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall rpc serve\n  farcall rpc serve --listen 127.0.0.1:0 --json")]
pub struct Serve {
    /// Listen for handshakes on this TCP address; port 0 lets the system choose.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:11300", value_parser = resolve)]
    listen: SocketAddr,
    /// Number of server threads. Each serves its part of the connections.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    #[command(flatten)]
    config: ConfigArg,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    nic: NicArgs,
}

impl Serve {
    /// Serves until a stop is requested.
    ///
    /// # Errors
    /// If the service cannot start, or fails.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        count_allocations_for_parent()
            .map_err(|error| Failure::because("cannot count heap operations for the benchmark", &error))?;
        let stop = StopFlag::install()?;
        limit_retained_memory();
        let capacity = open_files::raise_limit_for(Serves { memcached: false, rpc: true })?;
        let server = Server::builder().address(self.listen.to_string()).threads(self.threads);
        let selected = self.nic.open()?;
        let server = server.start(&selected.nic, |_| Echo::default()).map_err(|error| {
            Failure::because("cannot start the echo service", &error)
                .remedy("choose another address with --listen; find out what else is missing: farcall doctor")
        })?;
        let address = server.address().to_string();
        let ready = Ready {
            serving: "rpc".to_owned(),
            pid: std::process::id(),
            rpc: Some(address.clone()),
            metrics: self.metrics.start()?.map(|address| address.to_string()),
            ..Ready::default()
        };
        let json = serde_json::to_value(&ready)
            .map_err(|error| Failure::because("cannot print the address of the service", &error))?;
        console.print_line(
            &format!(
                "serving echo on {address}{} (pid {})\n{}\n{capacity}",
                ready
                    .metrics
                    .as_ref()
                    .map_or_else(String::new, |metrics| format!(", http://{metrics}/metrics")),
                ready.pid,
                selected.explanation
            ),
            &json,
        )?;
        let exit = stop.wait_while(|| server.is_serving());
        let is_healthy = server.is_serving();
        server.drain();
        server.join();
        if is_healthy {
            Ok(exit)
        } else {
            Err(Failure::new("the echo service failed; its message is on standard error"))
        }
    }
}
