//! `--listen` and `--connect`: a measurement between two hosts, with one end on each.

use crate::commands::bench_args::RepetitionArgs;
use crate::commands::kv::resolve;
use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use crate::open_files;
use crate::signals::StopFlag;
use clap::Args;
use farcall::rpc::tune::Peer;
use farcall_bench::experiments::ExperimentEnv;
use farcall_bench::peer::{Listener, PeerError, Run};
use serde_json::json;
use std::net::SocketAddr;

/// Role of this process in a measurement between two hosts.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Two hosts")]
pub struct RemoteArgs {
    /// Run as the server half: execute the runs that client halves request, one at a time, until SIGINT. Of the other
    /// options, only those of the provider have an effect. There is no authentication: listen only on a network that
    /// you trust.
    #[arg(long, value_name = "HOST:PORT", value_parser = resolve, conflicts_with = "connect")]
    listen: Option<SocketAddr>,
    /// Run as the client half: measure against the server half at this address, which must be of the same release.
    #[arg(long, value_name = "HOST:PORT", value_parser = resolve)]
    connect: Option<SocketAddr>,
}

impl RemoteArgs {
    /// Returns the environment of an experiment: both ends on this host, or the serving end at a server half.
    ///
    /// # Errors
    /// If there is no such server half, or it is busy.
    pub fn env(&self, repeat: &RepetitionArgs, seed: u64) -> Result<ExperimentEnv, Failure> {
        let env = repeat.env(seed)?;
        let Some(address) = self.connect else { return Ok(env) };
        let run = Run::begin(address).map_err(|error| cannot_begin(&error, address))?;
        Ok(env.with_server_half(run))
    }

    /// Returns whether this process measures against a server half.
    #[cfg(feature = "full")]
    pub fn is_client_half(&self) -> bool {
        self.connect.is_some()
    }

    /// Returns the host of the measured server.
    pub fn peer(&self) -> Peer {
        self.connect.map_or(Peer::ThisHost, |address| Peer::at(&address.to_string()))
    }

    /// Serves client halves until a stop is requested, if this is the server half.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub fn serve(&self, console: Console, nic: &NicArgs) -> Result<Option<Exit>, Failure> {
        let Some(address) = self.listen else { return Ok(None) };
        let stop = StopFlag::install()?;
        open_files::raise_limit();
        let failed = |error: PeerError| Failure::because("cannot run as the server half", &error).at(address);
        let listener = Listener::bind(address, nic.selection()).map_err(failed)?;
        let (address, pid) = (listener.address(), std::process::id());
        let text = format!(
            "server half on {address} (pid {pid}); at the other host: --connect HOST:{}",
            address.port()
        );
        console.print_line(&text, &json!({ "listening": address, "pid": pid }))?;
        listener.serve(|| !stop.is_raised(), |what| eprintln!("{what}")).map_err(failed)?;
        Ok(Some(Exit::Success))
    }
}

/// Returns the failure of a measurement; mentions a server half that was lost.
pub fn cannot_measure(what: &str, error: &(dyn std::error::Error + 'static), env: &ExperimentEnv) -> Failure {
    let failure = Failure::because(what, error);
    match env.server_half() {
        Some(run) if run.is_lost() => {
            let address = run.agent().address();
            failure.at(format!("the server half at {address} is gone")).exit(Exit::Unreachable)
        }
        Some(run) => failure.at(run.agent().address()).remedy("read the messages of the server half"),
        None => failure.remedy("find out what is missing: farcall doctor"),
    }
}

fn cannot_begin(error: &PeerError, address: SocketAddr) -> Failure {
    let failure = Failure::because("cannot measure against the server half", error).at(address);
    match error {
        PeerError::Unreachable { .. } => failure
            .exit(Exit::Unreachable)
            .remedy("start it on that host: the same command with --listen HOST:PORT"),
        _ => failure.exit(Exit::Unreachable),
    }
}
