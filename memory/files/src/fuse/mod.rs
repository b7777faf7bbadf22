//! A mounted file system: threads that take the kernel's requests.
//!
//! A loop of our own, and no library: what the kernel says is some forty structures, and what a session needs to go on
//! in another process (an open /dev/fuse, numbers that outlive it) is what libraries keep for themselves.

mod mount;
mod one_file;
mod operations;
#[cfg(test)]
pub(crate) mod requests;
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
pub(crate) use mount::{UnattachedMount, detach, detach_ours, unmount};
pub use one_file::{ONE_FILE_NAME, Transfer, mount_one_file, serve_one_file};
#[cfg(test)]
pub(crate) use operations::answer as answer_to;
pub(crate) use operations::ask;
pub(crate) use wire::ERA_MAX;
pub(crate) use wire::Request;
use wire::{OUT_HEADER_BYTES, Opcode, REQUEST_BYTES_MAX};

/// Requests that are worked on at once: each waits for memory nodes.
const THREADS: usize = 8;

/// A volume at a directory. Dropping it takes it off.
pub struct Mount {
    dir: PathBuf,
    volume: Arc<Volume>,
    threads: Vec<JoinHandle<()>>,
    ends: mpsc::Receiver<MountEnd>,
}

/// Why a mount is not served any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountEnd {
    /// The file system was unmounted.
    Unmounted,
    /// The volume is lost to this process. Requests are left to the next one.
    Lost,
}

impl Mount {
    /// Mounts a volume.
    ///
    /// # Errors
    /// If there is no FUSE, the directory cannot be used, or the system refuses.
    pub fn start(dir: &Path, volume: Arc<Volume>) -> Result<Self, MountError> {
        let mount = create_volume_mount(dir, MountOptions { source: "farcall", is_read_only: false })?;
        let mounted = Self::serve(mount.device()?, mount.dir().to_owned(), volume)?;
        mount.attach()?;
        Ok(mounted)
    }

    /// Goes on where another process has ended that served this /dev/fuse: first of all the kernel is told to ask again
    /// for what that one did not answer.
    ///
    /// # Errors
    /// If the kernel cannot (before Linux 6.9), or there are no threads.
    pub fn take_over(device: OwnedFd, dir: PathBuf, volume: Arc<Volume>) -> io::Result<Self> {
        ask_again(&device)?;
        Self::serve(device, dir, volume)
    }

    /// Takes requests of a file system that `create_volume_mount` has created.
    ///
    /// # Errors
    /// If there are no threads.
    pub fn serve(device: OwnedFd, dir: PathBuf, volume: Arc<Volume>) -> io::Result<Self> {
        let device = Arc::new(device);
        let (ended, ends) = mpsc::channel();
        let mut mounted = Self { dir, volume, threads: Vec::new(), ends };
        for number in 0..THREADS {
            let (device, volume, ended) = (Arc::clone(&device), Arc::clone(&mounted.volume), ended.clone());
            let thread = std::thread::Builder::new().name(format!("fuse-{number}"));
            mounted.threads.push(thread.spawn(move || {
                serve(&device, |request, reply| {
                    let answering = volume.answering();
                    match answer_while_held(&device, &volume, request, reply) {
                        Some(outcome) => (outcome, answering),
                        None => leave(&ended),
                    }
                });
                // The receiver is gone when the mount is.
                let _ = ended.send(MountEnd::Unmounted);
            })?);
        }
        Ok(mounted)
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether it is mounted. Not, after `umount`.
    pub fn is_serving(&self) -> bool {
        !self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Unmounts.
    ///
    /// # Errors
    /// `EBUSY` if something there is in use.
    pub fn unmount(&self) -> io::Result<()> {
        unmount(&self.dir)
    }

    /// Takes it off its directory although something is in use. It serves on until nothing is.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn detach(&self) -> io::Result<()> {
        detach(&self.dir)
    }

    /// Waits until it is unmounted, or the volume is lost to this process. That has to end then: requests that wait are
    /// made again to the next one.
    pub fn wait(&mut self) -> MountEnd {
        for _ in 0..self.threads.len() {
            // A thread that panicked sends nothing; the others are waited for.
            if self.ends.recv() == Ok(MountEnd::Lost) {
                return MountEnd::Lost;
            }
        }
        // A panic was printed by its thread.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
        self.volume.tree().forget_all();
        MountEnd::Unmounted
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_serving() && !self.volume.is_lost() {
            // What is in use then has only errors; threads end with the process, or with the last use.
            let _ = self.detach();
        }
    }
}

/// Has the kernel ask again for what a process has not answered that has ended (FUSE_NOTIFY_RESEND).
///
/// # Errors
/// If the kernel cannot (before Linux 6.9).
pub fn ask_again(device: &OwnedFd) -> io::Result<()> {
    rustix::io::write(device, &wire::resend())?;
    Ok(())
}

/// Returns the outcome of a request if this process holds the volume before and after it: only then is the reply right.
/// `None` if the volume is lost: the kernel makes the request again to the next process.
fn answer_while_held(
    device: &OwnedFd,
    volume: &Volume,
    request: &Request<'_>,
    reply: &mut Vec<u8>,
) -> Option<tree::Result<()>> {
    let request = request.in_era(volume.era()).valid_for(volume.wait_until_held()?);
    if request.is_current(request.named) && operations::drop_privileges(volume, &request) {
        // It fails if the kernel does not know the inode, and caches nothing.
        let _ = rustix::io::write(device, &wire::invalidate_attributes(request.named));
    }
    let outcome = operations::answer(volume, &request, reply);
    volume.wait_until_held().map(|_| outcome)
}

/// Leaves the request that a thread has to the next process: it is not answered, and nothing more is taken.
fn leave(ended: &mpsc::Sender<MountEnd>) -> ! {
    // The receiver is gone when the mount is: then the process ends anyway.
    let _ = ended.send(MountEnd::Lost);
    loop {
        std::thread::park();
    }
}

/// Creates a file system for a directory. While a process holds the device, requests wait; they fail when none does.
pub(crate) fn create_volume_mount(
    dir: &Path,
    options: MountOptions<'_>,
) -> Result<UnattachedMount, MountError> {
    // The kernel checks permissions: it knows modes and owners from us.
    UnattachedMount::create(dir, options, &["default_permissions", "allow_other"])
}

/// Takes requests until the file system is unmounted. What comes with an outcome is held until the kernel has it.
fn serve<H>(device: &OwnedFd, mut answers: impl FnMut(&Request<'_>, &mut Vec<u8>) -> (tree::Result<()>, H)) {
    // It sleeps between requests, and a program waits for each.
    request_short_slice();
    // Its pages are there before the kernel writes to them: a process that is killed while it waits for one would take
    // the request with it.
    let mut bytes = vec![1; REQUEST_BYTES_MAX];
    let mut reply = Vec::new();
    loop {
        match rustix::io::read(device, &mut bytes[..]) {
            Ok(len_bytes) => {
                if let Some(request) = Request::parse(&bytes[..len_bytes]) {
                    answer(device, &request, &mut reply, &mut answers);
                }
            }
            // A request that was interrupted before it was read is gone.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            Err(Errno::NODEV) => return,
            Err(error) => {
                tracing::error!(%error, "a thread takes no more requests of /dev/fuse");
                return;
            }
        }
    }
}

fn answer<H>(
    device: &OwnedFd,
    request: &Request<'_>,
    reply: &mut Vec<u8>,
    answers: &mut impl FnMut(&Request<'_>, &mut Vec<u8>) -> (tree::Result<()>, H),
) {
    reply.clear();
    let (outcome, _held) = match request.opcode {
        Some(Opcode::Init) => (wire::init(request.body, reply), None),
        Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt) => {
            // Nobody waits for an answer. A request that waits for memory ends by itself, in bounded time.
            let _ = answers(request, reply);
            return;
        }
        Some(_) => {
            let (outcome, held) = answers(request, reply);
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
    // It fails if who asked is gone, or the file system is: then nobody waits.
    let _ = rustix::io::writev(device, &[IoSlice::new(&header), IoSlice::new(body)]);
}
