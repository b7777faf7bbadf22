//! `farcall umount`, which umount(8) also runs as `umount.fuse.farcall`.

use super::record::wait_until_free;
use crate::console::Console;
use crate::failure::{Exit, Failure};
use clap::Args;
use farcall_files::{farcall_mounted_at, unmount_at};
use serde_json::json;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Unmount a file system of farcall mount, and wait until its volume is free.
///
/// umount(8) also runs this command if the package has installed /sbin/umount.fuse.farcall. A directory whose mount was
/// killed, where programs get "Transport endpoint is not connected", can be unmounted as well.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  farcall umount /mnt\n  farcall umount /mnt --lazy")]
pub struct Umount {
    /// The directory.
    dir: PathBuf,
    /// Detach the file system although files are in use; it ends when none is.
    #[arg(long, short = 'l')]
    lazy: bool,
    /// Timeout in seconds of the wait for the process of farcall mount, which continues to end after it.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    /// Options of umount(8) without effect here.
    #[arg(short = 'f', hide = true)]
    force: bool,
    #[arg(short = 'n', hide = true)]
    no_table: bool,
    #[arg(short = 'r', hide = true)]
    read_only: bool,
    #[arg(short = 'v', hide = true)]
    verbose: bool,
    #[arg(short = 't', hide = true)]
    kind: Option<OsString>,
}

impl Umount {
    /// Unmounts, and waits.
    ///
    /// # Errors
    /// If no file system of farcall mount is there, it is in use, or its process does not exit in time.
    pub fn run(self, console: Console) -> Result<Exit, Failure> {
        let cannot = |error: io::Error| {
            Failure::because("cannot unmount", &error)
                .at(self.dir.display())
                .remedy("find the processes that use it: fuser -vm DIR; or detach it at once: farcall umount --lazy DIR")
        };
        let mounted = farcall_mounted_at(&self.dir).map_err(cannot)?.ok_or_else(|| {
            Failure::new("no file system of farcall mount is mounted there")
                .at(self.dir.display())
                .remedy("list mounts: findmnt -t fuse.farcall")
        })?;
        let (dir, device) = (mounted.at, mounted.device);
        unmount_at(&dir, self.lazy).map_err(cannot)?;
        let is_free = wait_until_free(&device, Duration::from_secs(if self.lazy { 0 } else { self.timeout }));
        if !is_free.map_err(cannot)? && !self.lazy {
            return Err(Failure::new("the file system is unmounted, but its process has not exited")
                .at(dir.display())
                .why(format!("waited for {} s", self.timeout))
                .remedy("read its messages, and check whether its memory nodes are reachable: farcall memory status"));
        }
        console.print(&format!("{} is unmounted", dir.display()), &json!({ "unmounted": dir }))?;
        Ok(Exit::Success)
    }
}
