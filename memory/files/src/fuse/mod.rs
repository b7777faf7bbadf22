//! A mounted file system: the threads that serve the kernel's requests.
//!
//! This module implements the FUSE protocol itself. It uses only about forty structures, and libraries hide the state
//! from which another process resumes a session: an open /dev/fuse and node numbers that outlive the process.

mod mount;
mod one_file;
mod operations;
#[cfg(test)]
pub(crate) mod requests;
mod tree_requests;
mod wire;

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use farcall_shm::request_short_slice;
use rustix::io::Errno;

use crate::tree;
use crate::volume::Volume;
pub use mount::{MountError, MountOptions, unmount_at};
pub(crate) use mount::{UnattachedMount, detach, detach_own, unmount};
pub use one_file::{ONE_FILE_NAME, Transfer, mount_one_file, serve_one_file};
#[cfg(test)]
pub(crate) use operations::handle as handle_request;
pub(crate) use tree_requests::execute;
pub(crate) use wire::ERA_MAX;
pub(crate) use wire::Request;
use wire::{OUT_HEADER_BYTES, Opcode, REQUEST_BYTES_MAX};

/// Number of requests served concurrently: each waits for memory nodes.
const THREADS: usize = 8;

/// A volume mounted at a directory. Dropping it unmounts the directory.
pub struct Mount {
    dir: PathBuf,
    volume: Arc<Volume>,
    threads: Vec<JoinHandle<()>>,
    ends: mpsc::Receiver<MountEnd>,
}

/// Reason why a mount is no longer served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountEnd {
    /// The file system was unmounted.
    Unmounted,
    /// This process has lost the volume. Outstanding requests are left to the next process.
    Lost,
}

impl Mount {
    /// Mounts a volume at a directory.
    ///
    /// # Errors
    /// Returns an error if FUSE is not available, the directory cannot be used, or the kernel rejects the mount.
    pub fn start(dir: &Path, volume: Arc<Volume>) -> Result<Self, MountError> {
        let mount = create_volume_mount(dir, MountOptions { source: "farcall", is_read_only: false })?;
        let mounted = Self::serve(mount.device()?, mount.dir().to_owned(), volume)?;
        mount.attach()?;
        Ok(mounted)
    }

    /// Resumes service of this /dev/fuse after another process has exited. First requests that the kernel resend the
    /// requests to which the other process has not replied.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot do this (before Linux 6.9), or if threads cannot be started.
    pub fn take_over(device: OwnedFd, dir: PathBuf, volume: Arc<Volume>) -> io::Result<Self> {
        request_resend(&device)?;
        Self::serve(device, dir, volume)
    }

    /// Serves a file system created by `create_volume_mount`.
    ///
    /// # Errors
    /// Returns an error if threads cannot be started.
    pub fn serve(device: OwnedFd, dir: PathBuf, volume: Arc<Volume>) -> io::Result<Self> {
        let device = Arc::new(device);
        let (ended, ends) = mpsc::channel();
        let mut mounted = Self { dir, volume, threads: Vec::new(), ends };
        for number in 0..THREADS {
            let (device, volume, ended) = (Arc::clone(&device), Arc::clone(&mounted.volume), ended.clone());
            let thread = std::thread::Builder::new().name(format!("fuse-{number}"));
            mounted.threads.push(thread.spawn(move || {
                serve(&device, |request, reply| {
                    let reply_guard = volume.reply_guard();
                    match handle_while_exclusive(&device, &volume, request, reply) {
                        Some(outcome) => (outcome, reply_guard),
                        None => abandon_request(&ended),
                    }
                });
                // The receiver is dropped together with the mount.
                let _ = ended.send(MountEnd::Unmounted);
            })?);
        }
        Ok(mounted)
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns whether it is mounted; `false` after `umount`.
    pub fn is_serving(&self) -> bool {
        !self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Unmounts the file system.
    ///
    /// # Errors
    /// Returns `EBUSY` if a file there is in use.
    pub fn unmount(&self) -> io::Result<()> {
        unmount(&self.dir)
    }

    /// Detaches the file system from its directory even if files are in use. It is served until none is.
    ///
    /// # Errors
    /// Returns the error of umount(2).
    pub fn detach(&self) -> io::Result<()> {
        detach(&self.dir)
    }

    /// Waits until the file system is unmounted, or this process loses the volume. In the latter case the process must
    /// exit: the kernel then resends the outstanding requests to the next one.
    pub fn wait(&mut self) -> MountEnd {
        for _ in 0..self.threads.len() {
            // A thread that panicked sends no message; the loop waits for the others.
            if self.ends.recv() == Ok(MountEnd::Lost) {
                return MountEnd::Lost;
            }
        }
        // A panic of the thread was printed by the panic hook.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        self.volume.tree().forget_all();
        MountEnd::Unmounted
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_serving() && !self.volume.is_lost() {
            // Open files then return errors. The threads end with the process, or when the last file is closed.
            let _ = self.detach();
        }
    }
}

/// Requests that the kernel resend the requests to which an exited process has not replied (FUSE_NOTIFY_RESEND).
///
/// # Errors
/// Returns an error if the kernel cannot do this (before Linux 6.9).
pub fn request_resend(device: &OwnedFd) -> io::Result<()> {
    rustix::io::write(device, &wire::resend())?;
    Ok(())
}

/// Returns the outcome of a request if this process holds the volume before and after it: only then is the reply
/// valid. Returns `None` if the volume is lost: the kernel resends the request to the next process.
fn handle_while_exclusive(
    device: &OwnedFd,
    volume: &Volume,
    request: &Request<'_>,
    reply: &mut Vec<u8>,
) -> Option<tree::Result<()>> {
    let request = request.in_era(volume.era()).valid_for(volume.wait_until_exclusive()?);
    if request.is_current(request.named) && operations::drop_privileges(volume, &request) {
        // Fails if the kernel does not know the inode; then it caches nothing.
        let _ = rustix::io::write(device, &wire::invalidate_attributes(request.named));
    }
    let outcome = operations::handle(volume, &request, reply);
    volume.wait_until_exclusive().map(|_| outcome)
}

/// Leaves the current request to the next process: the thread does not reply to it, and reads no more requests.
fn abandon_request(ended: &mpsc::Sender<MountEnd>) -> ! {
    // If the receiver was dropped with the mount, the process is exiting anyway.
    let _ = ended.send(MountEnd::Lost);
    loop {
        std::thread::park();
    }
}

/// Creates a file system for a directory. Requests wait while a process holds the device, and fail when none does.
pub(crate) fn create_volume_mount(
    dir: &Path,
    options: MountOptions<'_>,
) -> Result<UnattachedMount, MountError> {
    // The kernel checks permissions, from the modes and owners in the replies.
    UnattachedMount::create(dir, options, &["default_permissions", "allow_other"])
}

/// Serves requests until the file system is unmounted. The value `H` returned with an outcome is held until the kernel
/// has received the reply.
fn serve<H>(device: &OwnedFd, mut handler: impl FnMut(&Request<'_>, &mut Vec<u8>) -> (tree::Result<()>, H)) {
    // The thread sleeps between requests, and a program waits for each of them.
    request_short_slice();
    // The buffer is populated before the kernel writes to it: a process that is killed while a page fault delays the
    // read would lose the request.
    let mut bytes = vec![1; REQUEST_BYTES_MAX];
    let mut reply = Vec::new();
    loop {
        match rustix::io::read(device, &mut bytes[..]) {
            Ok(len_bytes) => {
                if let Some(request) = Request::parse(&bytes[..len_bytes]) {
                    send_reply(device, &request, &mut reply, &mut handler);
                }
            }
            // ENOENT: the request was interrupted before it was read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            Err(Errno::NODEV) => return,
            Err(error) => {
                tracing::error!(%error, "a thread takes no more requests of /dev/fuse");
                return;
            }
        }
    }
}

fn send_reply<H>(
    device: &OwnedFd,
    request: &Request<'_>,
    reply: &mut Vec<u8>,
    handler: &mut impl FnMut(&Request<'_>, &mut Vec<u8>) -> (tree::Result<()>, H),
) {
    reply.clear();
    let (outcome, _held) = match request.opcode {
        Some(Opcode::Init) => (wire::init(request.body, reply), None),
        Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt) => {
            // These have no reply. Interrupts are ignored: a request that waits for memory ends in bounded time.
            let _ = handler(request, reply);
            return;
        }
        Some(_) => {
            let (outcome, held) = handler(request, reply);
            (outcome, Some(held))
        }
        None => (Err(Errno::NOSYS), None),
    };
    let body = if outcome.is_ok() { &reply[..] } else { &[] };
    let error = outcome.err().map_or(0, |errno| -errno.raw_os_error());
    let mut header = [0; OUT_HEADER_BYTES];
    header[..4].copy_from_slice(&((OUT_HEADER_BYTES + body.len()) as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&request.unique.to_ne_bytes());
    // Fails if the requester has exited or the file system was unmounted; then no process waits for the reply.
    let _ = rustix::io::writev(device, &[IoSlice::new(&header), IoSlice::new(body)]);
}
