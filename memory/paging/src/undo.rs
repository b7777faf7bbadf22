//! Releases all resources of a run that exist. Every step is bounded in time, because the pager may have crashed or be
//! stopped.

use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use farcall_files::mounts;
use rustix::mount::{UnmountFlags, unmount};

use crate::cgroup::{Cgroup, Hierarchy};
use crate::loop_device::device_over;
use crate::run_paths::{RunPaths, stale_runs};
use crate::swap::{areas, swap_off};

/// Maximum time until killed processes have exited while pages are served.
const END_MAX: Duration = Duration::from_secs(10);
/// Maximum time without progress of swapoff before pages of other programs are abandoned: longer than requests to
/// memory nodes are retried.
const STILL_MAX: Duration = Duration::from_secs(20);
/// Maximum duration of a step after all requests have been aborted.
const AFTER_ABORT_MAX: Duration = Duration::from_secs(60);
/// Maximum time that an unused file system may be busy: a system service may inspect a new device.
const BUSY_MAX: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Result of a cleanup: the remaining resources are the error.
pub type Undone = Result<(), Vec<String>>;

/// Ends the program's processes, then the swap area, then the file system and the cgroup. After success the run is
/// removed. Otherwise the remaining resources are returned, and the record stays, so that the cleanup can be repeated.
///
/// # Errors
/// Returns the remaining resources.
pub fn undo(paths: RunPaths) -> Result<(), Vec<String>> {
    let mut left = Vec::new();
    let cgroup = Hierarchy::find().ok().flatten().map(|hierarchy| hierarchy.cgroup(&paths.cgroup()));
    let cgroup = cgroup.filter(Cgroup::exists);
    if let Some(cgroup) = &cgroup {
        end_processes(cgroup, paths, &mut left);
    }
    if let Some(device) = device_over(&paths.file()) {
        end_swap(&device, paths, &mut left);
    }
    if let Err(error) = unmount_when_idle(&paths.mount()) {
        left.push(format!("{}: cannot unmount: {error}", paths.mount().display()));
    }
    if let Some(cgroup) = &cgroup
        && let Err(error) = retry(BUSY_MAX, || cgroup.remove())
    {
        left.push(format!("{}: cannot remove the cgroup: {error}", cgroup.path().display()));
    }
    if left.is_empty()
        && let Err(error) = paths.remove()
    {
        left.push(format!("cannot remove its record: {error}"));
    }
    if left.is_empty() { Ok(()) } else { Err(left) }
}

/// Cleans up the runs whose processes have exited. Returns the runs, each with the resources that could not be
/// released.
///
/// # Errors
/// Returns an error if the runs cannot be listed.
pub fn clean_up() -> io::Result<Vec<(RunPaths, Undone)>> {
    Ok(stale_runs()?.into_iter().map(|stale| (stale.paths, undo(stale.paths))).collect())
}

/// Kills all processes in the cgroup, first while pages are served. A process that waits for a page that does not
/// arrive exits when all requests are aborted. All have a pending SIGKILL then, so none observes the failure.
fn end_processes(cgroup: &Cgroup, paths: RunPaths, left: &mut Vec<String>) {
    cgroup.kill_all();
    if !cgroup.wait_until_empty(END_MAX) {
        abort(paths);
        if !cgroup.wait_until_empty(AFTER_ABORT_MAX) {
            left.push(format!("{}: processes do not end", cgroup.path().display()));
        }
    }
    // Pages that the processes leave in shared memory are read back from swap, however many there are.
    if let Err(error) = cgroup.lift_limit() {
        tracing::warn!(%error, "cannot lift the limit of a cgroup that ends");
    }
}

fn end_swap(device: &Path, paths: RunPaths, left: &mut Vec<String>) {
    if !areas().is_ok_and(|areas| areas.iter().any(|area| area.path == device)) {
        return;
    }
    let (ended, end) = mpsc::channel();
    let path = device.to_owned();
    let run = move || drop(ended.send(swap_off(&path)));
    // Runs in a separate thread, because it may wait for pages that never arrive.
    if let Err(error) = std::thread::Builder::new().name("swapoff".into()).spawn(run) {
        left.push(format!("{}: cannot end the swap area: {error}", device.display()));
        return;
    }
    let outcome = wait_for_swapoff(device, &end).or_else(|| {
        abort(paths);
        end.recv_timeout(AFTER_ABORT_MAX).ok()
    });
    match outcome {
        Some(Ok(())) => {}
        Some(Err(error)) => left.push(format!("{}: cannot end the swap area: {error}", device.display())),
        None => left.push(format!("{}: the swap area does not end", device.display())),
    }
}

/// Waits for the end of swapoff as long as the used part of the area decreases.
fn wait_for_swapoff(device: &Path, end: &mpsc::Receiver<io::Result<()>>) -> Option<io::Result<()>> {
    let (mut least_bytes, mut since) = (u64::MAX, Instant::now());
    while since.elapsed() < STILL_MAX {
        if let Ok(outcome) = end.recv_timeout(POLL_INTERVAL) {
            return Some(outcome);
        }
        let areas = areas().unwrap_or_default();
        let used_bytes = areas.iter().find(|area| area.path == device).map_or(0, |area| area.used_bytes);
        if used_bytes < least_bytes {
            (least_bytes, since) = (used_bytes, Instant::now());
        }
    }
    None
}

/// Aborts all requests of the file system, both outstanding and future ones. Must be called only after the program's
/// processes were killed.
pub fn abort(paths: RunPaths) {
    let mount = paths.mount();
    if is_mounted(&mount) {
        // The unmount itself fails while the loop device uses the file system; only the abort of the requests matters.
        let _ = unmount(&mount, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
    }
}

fn is_mounted(mount: &Path) -> bool {
    mounts().is_ok_and(|mounts| mounts.iter().any(|mounted| mounted.at == mount))
}

fn unmount_when_idle(mount: &Path) -> io::Result<()> {
    retry(BUSY_MAX, || {
        if !is_mounted(mount) {
            return Ok(());
        }
        unmount(mount, UnmountFlags::NOFOLLOW).map_err(io::Error::from)
    })
}

fn retry(patience: Duration, mut attempt: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(_) if begun.elapsed() < patience => std::thread::sleep(POLL_INTERVAL),
            outcome => return outcome,
        }
    }
}
