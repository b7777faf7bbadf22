//! The kernel's userfaultfd (ioctl_userfaultfd(2), `linux/userfaultfd.h`): page faults in a range of memory are
//! reported to the process that holds the descriptor, and the faulting threads wait until it has resolved them.
//!
//! The structures are defined here because the C library does not have them. The crate `userfaultfd` supports neither
//! UFFDIO_MOVE nor UFFDIO_POISON.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};
use rustix::mm::{UserfaultfdFlags, userfaultfd};

const GROUP: u8 = 0xaa;
const API_VERSION: u64 = 0xaa;
/// UFFD_USER_MODE_ONLY: reports only faults in user mode; system calls that access a missing page fail.
const USER_MODE_ONLY: u32 = 1;
/// Length of `uffd_msg` in bytes.
const MESSAGE_BYTES: usize = 32;
const EVENT_PAGEFAULT: u8 = 0x12;
const FLAG_WRITE_PROTECTED: u64 = 1 << 1;
/// Maximum number of faults read by one system call.
const FAULTS_MAX: usize = 16;

/// Required features: write protection of anonymous memory, UFFDIO_POISON, UFFDIO_MOVE.
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

/// Argument of UFFDIO_COPY and UFFDIO_MOVE.
#[derive(Clone, Copy)]
#[repr(C)]
struct Transfer {
    to: u64,
    from: u64,
    len_bytes: u64,
    mode: u64,
    /// Number of bytes processed, or a negative error.
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
/// USERFAULTFD_IOC_NEW of `/dev/userfaultfd`.
const NEW: Opcode = opcode::none(GROUP, 0x00);

const REGISTER_MISSING: u64 = 1;
const REGISTER_WRITE_PROTECT: u64 = 1 << 1;
const PROTECT: u64 = 1;

/// A page fault, for which a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// An address in the page.
    pub address: u64,
    /// `true` if the page is present and write-protected.
    pub is_protected: bool,
}

/// The kinds of access that wait for missing pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultMode {
    /// All accesses, including those of system calls on behalf of the process: read(2) into the region works.
    All,
    /// Accesses in user mode. A system call that accesses a page which is not resident fails with EFAULT.
    UserModeOnly,
}

/// A userfaultfd descriptor.
pub(crate) struct Uffd(OwnedFd);

impl Uffd {
    /// Opens a descriptor with the most capabilities that this process is permitted, and returns which accesses will
    /// wait.
    pub fn open() -> io::Result<(Self, FaultMode)> {
        let (fd, mode) = Self::descriptor()?;
        let uffd = Self(fd);
        let wanted = FEATURES.iter().fold(0, |all, (feature, _)| all | feature);
        let mut api = Api { version: API_VERSION, features: 0, ioctls: 0 };
        // The features of a descriptor can be queried only once, so a second descriptor is used for the query.
        let (probe, _) = Self::descriptor()?;
        ioctl(&probe, API, &mut api)?;
        if let Some((_, name)) = FEATURES.iter().find(|(feature, _)| api.features & feature == 0) {
            return Err(io::Error::other(format!("userfaultfd has no {name} here")));
        }
        api = Api { version: API_VERSION, features: wanted, ioctls: 0 };
        ioctl(&uffd.0, API, &mut api)?;
        Ok((uffd, mode))
    }

    fn descriptor() -> io::Result<(OwnedFd, FaultMode)> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: creating the descriptor has no effect on memory; only `register` changes how accesses to a range
        // behave.
        let open = |flags| unsafe { userfaultfd(flags) };
        // Permitted with CAP_SYS_PTRACE or if vm.unprivileged_userfaultfd is 1.
        if let Ok(fd) = open(flags) {
            return Ok((fd, FaultMode::All));
        }
        if let Ok(fd) = Self::from_device() {
            return Ok((fd, FaultMode::All));
        }
        let fd = open(flags | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY))?;
        Ok((fd, FaultMode::UserModeOnly))
    }

    /// Opens a descriptor through the device, which is permitted to every process that may open it.
    fn from_device() -> io::Result<OwnedFd> {
        let device = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: USERFAULTFD_IOC_NEW takes flags by value and no pointer.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), NEW as _, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the ioctl above has just returned this descriptor, and no other object owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Returns the descriptor, which is readable when there is a fault to read.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Registers a range: its faults are reported to this descriptor.
    ///
    /// # Safety
    /// The range must be a mapping that belongs to the caller. From now on a thread that accesses a missing page of it
    /// waits until the page is filled: the thread that resolves the faults must never do so.
    pub unsafe fn register(&self, address: usize, len_bytes: usize) -> io::Result<()> {
        let mode = REGISTER_MISSING | REGISTER_WRITE_PROTECT;
        let mut register = Register { range: range(address, len_bytes), mode, ioctls: 0 };
        ioctl(&self.0, REGISTER, &mut register)
    }

    /// Reads pending faults and calls `on_fault` with each, in FIFO order. Returns the number of messages.
    pub fn faults(&self, mut on_fault: impl FnMut(Fault)) -> io::Result<usize> {
        let mut bytes = [0; FAULTS_MAX * MESSAGE_BYTES];
        let count = match rustix::io::read(&self.0, &mut bytes) {
            Ok(read) => read / MESSAGE_BYTES,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        for message in bytes.chunks_exact(MESSAGE_BYTES).take(count) {
            let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|byte| message[at + byte]));
            if message[0] == EVENT_PAGEFAULT {
                on_fault(Fault { address: word(16), is_protected: word(8) & FLAG_WRITE_PROTECTED != 0 });
            }
        }
        Ok(count)
    }

    /// Fills missing pages with `bytes` and wakes the threads that wait for them. An error contains the number of
    /// bytes filled before it.
    ///
    /// # Safety
    /// The range must be registered with this descriptor.
    pub unsafe fn copy(&self, to: usize, bytes: &[u8]) -> Result<(), (usize, Errno)> {
        // SAFETY: this function's contract guarantees that the destination is registered; `bytes` is borrowed for the
        // call.
        unsafe { self.transfer(COPY, to, bytes.as_ptr().addr(), bytes.len()) }
    }

    /// Moves pages to a range where they are missing, and wakes the threads that wait for them there. The move of a
    /// page is atomic: a concurrent write of another thread is executed before it, or waits for the page at its old
    /// address.
    ///
    /// # Safety
    /// Both ranges must be registered with this descriptor and consist of private anonymous memory.
    pub unsafe fn move_pages(&self, to: usize, from: usize, len_bytes: usize) -> Result<(), (usize, Errno)> {
        // SAFETY: this function's contract guarantees that both ranges are registered private anonymous memory.
        unsafe { self.transfer(MOVE, to, from, len_bytes) }
    }

    /// # Safety
    /// The contract of `copy` applies for UFFDIO_COPY (in addition, `len_bytes` bytes at `from` must be readable), and
    /// that of `move_pages` for UFFDIO_MOVE.
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
                        // The kernel returns EAGAIN while the memory map of the process is being changed.
                        Some(Errno::AGAIN) => {}
                        other => return Err((done, other.unwrap_or(Errno::IO))),
                    }
                }
            }
        }
        Ok(())
    }

    /// Poisons missing pages: an access to them raises SIGBUS. Fails with EEXIST if a page is present.
    ///
    /// # Safety
    /// The range must be registered with this descriptor.
    pub unsafe fn poison(&self, address: usize, len_bytes: usize) -> io::Result<()> {
        let mut poison = Poison { range: range(address, len_bytes), mode: 0, updated: 0 };
        ioctl(&self.0, POISON, &mut poison)
    }

    /// Enables or disables the write protection of the present pages of the range. Threads that write to a protected
    /// page wait.
    ///
    /// # Safety
    /// The range must be registered with this descriptor.
    pub unsafe fn protect(&self, address: usize, len_bytes: usize, is_on: bool) -> io::Result<()> {
        let mode = if is_on { PROTECT } else { 0 };
        let mut protect = WriteProtect { range: range(address, len_bytes), mode };
        ioctl(&self.0, WRITE_PROTECT, &mut protect)
    }

    /// Wakes the threads that wait for these pages; they retry their accesses.
    pub fn wake(&self, address: usize, len_bytes: usize) -> io::Result<()> {
        ioctl(&self.0, WAKE, &mut range(address, len_bytes))
    }
}

fn range(address: usize, len_bytes: usize) -> Range {
    Range { start: address as u64, len_bytes: len_bytes as u64 }
}

/// Executes a request of a userfaultfd.
fn ioctl<T>(fd: &OwnedFd, opcode: Opcode, argument: &mut T) -> io::Result<()> {
    loop {
        // SAFETY: each opcode of this file encodes the size of the argument type that is passed with it, and
        // `argument` is borrowed for the call. Beyond it the kernel changes only ranges for which the contracts of
        // `register`, `copy`, `move_pages`, `poison` and `protect` hold.
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
