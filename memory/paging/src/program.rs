//! Start of the program, in its cgroup from its first instruction on.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use crate::cgroup::Cgroup;

/// Starts the program in the cgroup.
pub fn start(mut command: Command, cgroup: &Cgroup) -> io::Result<Child> {
    let processes = OpenOptions::new().write(true).open(cgroup.processes_file())?;
    let enter = move || {
        // 0 identifies the writing process.
        rustix::io::write(processes.as_fd(), b"0")?;
        Ok(())
    };
    // SAFETY: `pre_exec` requires that the closure is async-signal-safe in the forked child. It executes one write(2)
    // to a descriptor opened before the fork; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(enter) };
    command.spawn()
}
