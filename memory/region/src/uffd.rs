//! The system's userfaultfd (ioctl_userfaultfd(2), `linux/userfaultfd.h`): page faults of a range of memory are told to
//! whoever holds the descriptor, and wait until he says what is there.
//!
//! The structures stand here since the C library has none. The crate `userfaultfd` knows neither UFFDIO_MOVE nor
//! UFFDIO_POISON.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

const GROUP: u8 = 0xaa;
const API_VERSION: u64 = 0xaa;
/// Faults of this process's own instructions only: system calls that meet a missing page fail.
const USER_MODE_ONLY: u32 = 1;
/// Bytes of `uffd_msg`.
const MESSAGE_BYTES: usize = 32;
const EVENT_PAGEFAULT: u8 = 0x12;
const FLAG_WRITE_PROTECTED: u64 = 1 << 1;
/// Faults that are read at once.
const FAULTS_MAX: usize = 16;

/// What of the system is needed: write protection of anonymous memory, UFFDIO_POISON, UFFDIO_MOVE.
const FEATURES: [(u64, &str); 3] = [
    (1, "write protection (kernel 5.7)"),
    (1 << 14, "UFFDIO_POISON (kernel 6.6)"),
    (1 << 16, "UFFDIO_MOVE (kernel 6.8)"),
];

#[derive(Clone, Copy)]
#[repr(C)]
struct Api {
    version: u64,
    features: u64,
    ioctls: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Range {
    start: u64,
    len_bytes: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// Of UFFDIO_COPY and UFFDIO_MOVE.
#[derive(Clone, Copy)]
#[repr(C)]
struct Transfer {
    to: u64,
    from: u64,
    len_bytes: u64,
    mode: u64,
    /// Bytes that it did, or an error.
    done: i64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Poison {
    range: Range,
    mode: u64,
    updated: i64,
}

const API: Opcode = opcode::read_write::<Api>(GROUP, 0x3f);
const REGISTER: Opcode = opcode::read_write::<Register>(GROUP, 0x00);
const WAKE: Opcode = opcode::read::<Range>(GROUP, 0x02);
const COPY: Opcode = opcode::read_write::<Transfer>(GROUP, 0x03);
const MOVE: Opcode = opcode::read_write::<Transfer>(GROUP, 0x05);
const WRITE_PROTECT: Opcode = opcode::read_write::<WriteProtect>(GROUP, 0x06);
const POISON: Opcode = opcode::read_write::<Poison>(GROUP, 0x08);
/// Of `/dev/userfaultfd`.
const NEW: Opcode = opcode::none(GROUP, 0x00);

const REGISTER_MISSING: u64 = 1;
const REGISTER_WRITE_PROTECT: u64 = 1 << 1;
const PROTECT: u64 = 1;

/// A page fault: some thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Somewhere in the page.
    pub address: u64,
    /// The page is there, and protected against writing.
    pub is_protected: bool,
}

/// Which accesses wait for pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// All of them, also of system calls on behalf of the process: read(2) into the region works.
    Everyone,
    /// Those of the process's own instructions. A system call that meets a page which is not resident fails with EFAULT.
    OwnInstructions,
}

/// A userfaultfd.
pub(crate) struct Uffd(OwnedFd);

impl Uffd {
    /// As much as this process may have, and which accesses will wait.
    pub fn open() -> io::Result<(Self, Waits)> {
        let (fd, waits) = Self::descriptor()?;
        let uffd = Self(fd);
        let wanted = FEATURES.iter().fold(0, |all, (feature, _)| all | feature);
        let mut api = Api { version: API_VERSION, features: 0, ioctls: 0 };
        // What there is can be asked for once for each descriptor.
        let (probe, _) = Self::descriptor()?;
        ioctl(&probe, API, &mut api)?;
        if let Some((_, name)) = FEATURES.iter().find(|(feature, _)| api.features & feature == 0) {
            return Err(io::Error::other(format!("userfaultfd has no {name} here")));
        }
        api = Api { version: API_VERSION, features: wanted, ioctls: 0 };
        ioctl(&uffd.0, API, &mut api)?;
        Ok((uffd, waits))
    }

    fn descriptor() -> io::Result<(OwnedFd, Waits)> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: by itself the descriptor does nothing; what is registered with it decides.
        let open = |flags| unsafe { userfaultfd(flags) };
        // With a privilege, or where vm.unprivileged_userfaultfd is 1.
        if let Ok(fd) = open(flags) {
            return Ok((fd, Waits::Everyone));
        }
        if let Ok(fd) = Self::from_device() {
            return Ok((fd, Waits::Everyone));
        }
        let fd = open(flags | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY))?;
        Ok((fd, Waits::OwnInstructions))
    }

    /// The device gives one to everybody who may open it.
    fn from_device() -> io::Result<OwnedFd> {
        let device = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: the request takes flags and no pointer.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), NEW as _, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Becomes readable with a fault.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// From now on the faults of a range are told here.
    ///
    /// # Safety
    /// The range is a mapping of the caller's. From now on whoever touches a page that is missing waits until it is
    /// there: the holder of this must never do so.
    pub unsafe fn register(&self, address: usize, len_bytes: usize) -> io::Result<()> {
        let mode = REGISTER_MISSING | REGISTER_WRITE_PROTECT;
        let mut register = Register { range: range(address, len_bytes), mode, ioctls: 0 };
        ioctl(&self.0, REGISTER, &mut register)
    }

    /// Faults that nobody has read, in the order in which they came.
    pub fn faults(&self, mut tell: impl FnMut(Fault)) -> io::Result<usize> {
        let mut bytes = [0; FAULTS_MAX * MESSAGE_BYTES];
        let count = match rustix::io::read(&self.0, &mut bytes) {
            Ok(read) => read / MESSAGE_BYTES,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        for message in bytes.chunks_exact(MESSAGE_BYTES).take(count) {
            let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| message[at + byte]));
            if message[0] == EVENT_PAGEFAULT {
                tell(Fault { address: word(16), is_protected: word(8) & FLAG_WRITE_PROTECTED != 0 });
            }
        }
        Ok(count)
    }

    /// Puts bytes where pages are missing, and wakes who waits for them. An error tells how many bytes were put there.
    ///
    /// # Safety
    /// The range is registered here.
    pub unsafe fn copy(&self, to: usize, bytes: &[u8]) -> Result<(), (usize, Errno)> {
        // SAFETY: as promised; the bytes live as long as the call.
        unsafe { self.transfer(COPY, to, bytes.as_ptr().addr(), bytes.len()) }
    }

    /// Moves a page from one place to another, where it is missing, and wakes who waits for it there. It happens at once:
    /// whoever writes to the page meanwhile has done so before, or waits for it at its old place.
    ///
    /// # Safety
    /// Both ranges are registered here, and of private anonymous memory.
    pub unsafe fn move_pages(&self, to: usize, from: usize, len_bytes: usize) -> Result<(), (usize, Errno)> {
        // SAFETY: as promised.
        unsafe { self.transfer(MOVE, to, from, len_bytes) }
    }

    /// # Safety
    /// As of those who call it.
    unsafe fn transfer(
        &self,
        opcode: Opcode,
        to: usize,
        from: usize,
        len_bytes: usize,
    ) -> Result<(), (usize, Errno)> {
        let mut done = 0;
        while done < len_bytes {
            let mut transfer = Transfer {
                to: (to + done) as u64,
                from: (from + done) as u64,
                len_bytes: (len_bytes - done) as u64,
                mode: 0,
                done: 0,
            };
            match ioctl(&self.0, opcode, &mut transfer) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    done += usize::try_from(transfer.done).unwrap_or(0);
                    match Errno::from_io_error(&error) {
                        // The address space is being changed.
                        Some(Errno::AGAIN) => {}
                        other => return Err((done, other.unwrap_or(Errno::IO))),
                    }
                }
            }
        }
        Ok(())
    }

    /// Whoever touches the page from now on gets SIGBUS. EEXIST: it is there.
    ///
    /// # Safety
    /// The range is registered here.
    pub unsafe fn poison(&self, address: usize, len_bytes: usize) -> io::Result<()> {
        let mut poison = Poison { range: range(address, len_bytes), mode: 0, updated: 0 };
        ioctl(&self.0, POISON, &mut poison)
    }

    /// Whoever writes to these pages, as far as they are there, waits from now on; or nobody waits any more.
    ///
    /// # Safety
    /// The range is registered here.
    pub unsafe fn protect(&self, address: usize, len_bytes: usize, is_on: bool) -> io::Result<()> {
        let mode = if is_on { PROTECT } else { 0 };
        let mut protect = WriteProtect { range: range(address, len_bytes), mode };
        ioctl(&self.0, WRITE_PROTECT, &mut protect)
    }

    /// Lets who waits for these pages try again.
    pub fn wake(&self, address: usize, len_bytes: usize) -> io::Result<()> {
        ioctl(&self.0, WAKE, &mut range(address, len_bytes))
    }
}

fn range(address: usize, len_bytes: usize) -> Range {
    Range { start: address as u64, len_bytes: len_bytes as u64 }
}

/// A request of a userfaultfd.
fn ioctl<T>(fd: &OwnedFd, opcode: Opcode, argument: &mut T) -> io::Result<()> {
    loop {
        // SAFETY: each opcode of this file says the size of its own argument; what the kernel changes beyond it are
        // ranges that were registered, as callers promise.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), opcode as _, std::ptr::from_mut(argument)) };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
