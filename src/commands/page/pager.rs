//! The pager of `farcall page`: another process of this program, which it starts.

use crate::commands::nic_args::NicArgs;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall::memory::OpenError;
use farcall_paging::{PagerError, RunPaths, serve};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Serves the pages of a run: its standard input is /dev/fuse, its standard output a pipe to its supervisor.
#[derive(Debug, Args)]
pub struct Pager {
    /// Process number of the supervisor.
    #[arg(long)]
    supervisor: u32,
    /// State of the last process: a descriptor of the supervisor's.
    #[arg(long)]
    resume_file: Option<i32>,
    #[command(flatten)]
    nic: NicArgs,
}

impl Pager {
    /// Serves until the file system is unmounted.
    ///
    /// # Errors
    /// If it cannot start.
    pub fn run(self, _console: Console) -> Result<Exit, Failure> {
        let cannot_take =
            |error: io::Error| Failure::because("cannot take over the requests for pages", &error);
        let device = io::stdin().as_fd().try_clone_to_owned().map_err(cannot_take)?;
        let supervisor = UnixStream::from(io::stdout().as_fd().try_clone_to_owned().map_err(cannot_take)?);
        let nic = self.nic.open()?.nic;
        serve(RunPaths::of(self.supervisor), device, supervisor, &nic, self.resume_file)
            .map(|()| Exit::Success)
            .map_err(|error| {
                let failure = Failure::because("cannot serve pages", &error);
                match error {
                    PagerError::Open(OpenError::NoNode(_)) => failure
                        .remedy("start memory nodes: farcall memory serve; or name others with --nodes")
                        .exit(Exit::Unreachable),
                    PagerError::Open(OpenError::Range { .. } | OpenError::NotPages { .. }) => {
                        failure.remedy("change --size or --slab").exit(Exit::Usage)
                    }
                    PagerError::Memory(_) => failure.remedy(
                        "check their free memory: farcall memory status; lower --size, or name more nodes",
                    ),
                    _ => failure.remedy("find out what is missing: farcall doctor"),
                }
            })
    }
}
