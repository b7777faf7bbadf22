//! The program, in its cgroup from its first instruction on.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use crate::cgroup::Cgroup;

/// Starts it.
pub fn start(mut command: Command, cgroup: &Cgroup) -> io::Result<Child> {
    let processes = OpenOptions::new().write(true).open(cgroup.processes_file())?;
    let enter = move || {
        // 0 is the process that writes.
        rustix::io::write(processes.as_fd(), b"0")?;
        Ok(())
    };
    // SAFETY: what runs in the child before exec is one system call, with a descriptor that was opened before; it
    // neither allocates nor takes a lock.
    unsafe { command.pre_exec(enter) };
    command.spawn()
}
