//! Access to another process's memory that is in no segment (heap, stacks, file mappings), through its address space.
//!
//! A process opens its own `/proc/self/mem` and passes the descriptor to peers of the same user. Unlike
//! `process_vm_writev`, this names no pid, which could be reused, and needs no ptrace permission. If memory has been
//! unmapped, the call fails; there is no signal. The kernel writes to read-only pages through this file, so protections
//! are checked at registration.

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;

use crate::store_hook::before_store as step;

/// Maximum number of local memory ranges in one transfer. Two more entries are reserved for the order of placement.
pub const MAX_RANGES: usize = 16;

/// File system type of procfs, which contains `/proc/PID/mem`.
const PROC_SUPER_MAGIC: u64 = 0x9fa0;

/// A range of local memory: address and length in bytes.
pub type MemoryRange = (*mut u8, usize);

/// Reason of a failed transfer. Part of the transfer may have been made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferError {
    /// The local memory is not mapped.
    Local,
    /// The owner's memory is not mapped, or its protection has changed since the registration.
    Remote,
    /// The owner has exited, or executes another program.
    Ended,
}

/// The address space of a process.
pub struct AddressSpace(OwnedFd);

impl AddressSpace {
    /// Opens this process's address space; `None` if the system does not permit it: no `/proc`, or the process is not
    /// dumpable.
    pub fn own(writable: bool) -> Option<Self> {
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        let space = fs::open("/proc/self/mem", access | OFlags::CLOEXEC, Mode::empty()).ok().map(Self)?;
        space.is_usable(writable).then_some(space)
    }

    /// Accesses a local variable through the file: a kernel may be configured to permit opening the file and refuse its
    /// use.
    fn is_usable(&self, writable: bool) -> bool {
        let (mut mine, mut word) = (0_u64, 7_u64);
        let at = (&raw mut word).expose_provenance() as u64;
        let mine = &raw mut mine;
        let range = (mine.cast(), 8);
        // SAFETY: `mine` and `word` are local variables of 8 bytes that outlive the calls. They are accessed only
        // through raw pointers while the calls run, so no reference to them exists.
        unsafe {
            if self.read(at, &[range]).is_err() || mine.read_volatile() != 7 {
                return false;
            }
            mine.write_volatile(8);
            !writable || (self.write_in_order(at, &[range]).is_ok() && (&raw const word).read_volatile() == 8)
        }
    }

    /// Wraps a descriptor received from a peer; `None` if it is not a file of procfs.
    pub fn from_peer(fd: OwnedFd) -> Option<Self> {
        let is_proc = fs::fstatfs(&fd).is_ok_and(|stat| stat.f_type as u64 == PROC_SUPER_MAGIC);
        is_proc.then_some(Self(fd))
    }

    /// Returns the descriptor to pass to a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Writes `from` to the owner's memory at `addr`: the last 8 bytes after all others, and among these the final byte
    /// last.
    ///
    /// One system call. The kernel accesses the ranges one after the other, each under a lock of the owner's address
    /// space, which orders the accesses.
    ///
    /// # Errors
    /// See [`TransferError`].
    ///
    /// # Safety
    /// The ranges must be readable, at most [`MAX_RANGES`] of them. The owner of the memory must hold no references to
    /// the memory that is written.
    pub unsafe fn write_in_order(&self, addr: u64, from: &[MemoryRange]) -> Result<(), TransferError> {
        const LAST: usize = 8;
        let mut cursor = IovecCursor::new(addr, from);
        if let Some((base, len)) = from.last().copied().filter(|(_, len)| *len > 0) {
            let body = len.saturating_sub(LAST);
            cursor.replace_last(&[(base, body)]);
            // SAFETY: `body` is at most `len`, so the pointer stays inside the range, which the caller guarantees to be
            // readable.
            cursor.push((unsafe { base.add(body) }, len - 1 - body));
            // SAFETY: `len` is not zero, so `len - 1` lies inside the same range.
            cursor.push((unsafe { base.add(len - 1) }, 1));
        }
        step();
        // SAFETY: the ranges are readable, as the `# Safety` section of this function requires, and `pwritev` only
        // reads them. The kernel checks the addresses of the owner.
        unsafe { cursor.run(|iov, count, at| libc::pwritev(self.0.as_raw_fd(), iov, count, at)) }
    }

    /// Reads the owner's memory at `addr` into `to`, range by range in address order, the first 8 bytes before all
    /// others: a reader that finds a complete header there also has the data written before the header.
    ///
    /// # Errors
    /// See [`TransferError`].
    ///
    /// # Safety
    /// The ranges must be writable, at most [`MAX_RANGES`] of them, and no references to them may exist.
    pub unsafe fn read(&self, addr: u64, to: &[MemoryRange]) -> Result<(), TransferError> {
        const FIRST: usize = 8;
        let mut cursor = IovecCursor::new(addr, &[]);
        for (i, (base, len)) in to.iter().copied().enumerate() {
            let head = if i == 0 { len.min(FIRST) } else { 0 };
            cursor.push((base, head));
            // SAFETY: `head` is at most `len`, so the pointer stays inside the range, which the caller guarantees to be
            // writable.
            cursor.push((unsafe { base.add(head) }, len - head));
        }
        // SAFETY: the ranges are writable and unreferenced, as the `# Safety` section of this function requires.
        unsafe { cursor.run(|iov, count, at| libc::preadv(self.0.as_raw_fd(), iov, count, at)) }
    }
}

/// Ranges that have not been transferred yet, and the address in the owner's memory.
struct IovecCursor {
    at: u64,
    ranges: [libc::iovec; MAX_RANGES + 2],
    count: usize,
}

impl IovecCursor {
    fn new(at: u64, ranges: &[MemoryRange]) -> Self {
        const EMPTY: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut::<c_void>(), iov_len: 0 };
        let mut cursor = Self { at, ranges: [EMPTY; MAX_RANGES + 2], count: 0 };
        for range in ranges {
            cursor.push(*range);
        }
        cursor
    }

    /// Adds a range, unless it is empty.
    fn push(&mut self, (base, len): MemoryRange) {
        if len > 0 {
            self.ranges[self.count] = libc::iovec { iov_base: base.cast(), iov_len: len };
            self.count += 1;
        }
    }

    fn replace_last(&mut self, by: &[MemoryRange]) {
        self.count -= 1;
        for range in by {
            self.push(*range);
        }
    }

    /// Transfers all ranges; each `call` may transfer a part of them.
    ///
    /// # Safety
    /// The ranges must be valid for the access that `call` makes.
    unsafe fn run(
        mut self,
        call: impl Fn(*const libc::iovec, libc::c_int, libc::off_t) -> libc::ssize_t,
    ) -> Result<(), TransferError> {
        let mut first = 0;
        while first < self.count {
            let at = libc::off_t::try_from(self.at).map_err(|_| TransferError::Remote)?;
            let moved = call(&raw const self.ranges[first], (self.count - first) as libc::c_int, at);
            if moved < 0 {
                match Errno::from_io_error(&std::io::Error::last_os_error()) {
                    Some(Errno::INTR | Errno::AGAIN) => continue,
                    Some(Errno::FAULT) => return Err(TransferError::Local),
                    _ => return Err(TransferError::Remote),
                }
            }
            if moved == 0 {
                return Err(TransferError::Ended);
            }
            let mut left = moved as usize;
            self.at += left as u64;
            while left > 0 {
                let range = &mut self.ranges[first];
                let now = left.min(range.iov_len);
                range.iov_base = range.iov_base.wrapping_byte_add(now);
                range.iov_len -= now;
                left -= now;
                first += usize::from(range.iov_len == 0);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of a private mapping, parts of which the test unmaps.
    struct Pages(*mut u8, usize);

    impl Pages {
        /// Maps far from the addresses that the kernel chooses, so that unmapped pages stay unmapped while other
        /// threads map memory.
        fn new(len: usize) -> Self {
            use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
            use std::sync::atomic::{AtomicUsize, Ordering};
            static NEXT: AtomicUsize = AtomicUsize::new(1 << 36);
            let hint = NEXT.fetch_add(1 << 30, Ordering::Relaxed);
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
            // SAFETY: a new mapping aliases no existing memory.
            let base =
                unsafe { mmap_anonymous(std::ptr::without_provenance_mut(hint), len, prot, flags) }.unwrap();
            Self(base.cast(), len)
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: this object created the mapping, and no reference to it exists. Unmapping a range with unmapped
            // pages is no error.
            unsafe { rustix::mm::munmap(self.0.cast(), self.1) }.unwrap();
        }
    }

    #[test]
    fn all_lengths_and_cuts_arrive_and_come_back() {
        let Some(space) = AddressSpace::own(true) else { return println!("skipped: no /proc/self/mem") };
        let pages = Pages::new(4096);
        let mut source: Vec<u8> = (0..=255).collect();
        for len in 0..64_usize {
            for cut in [0, 1, len / 2, len] {
                let cut = cut.min(len);
                let base = source.as_mut_ptr();
                // SAFETY: all ranges lie inside the vector and the mapped pages.
                unsafe {
                    let ranges = [(base, cut), (base.add(cut), len - cut)];
                    pages.0.write_bytes(0xEE, 4096);
                    space.write_in_order(pages.0 as u64 + 3, &ranges).unwrap();
                    let mut got = vec![0_u8; len + 2];
                    pages.0.add(2).copy_to(got.as_mut_ptr(), len + 2);
                    assert!(got[1..=len] == source[..len] && got[0] == 0xEE && got[len + 1] == 0xEE);
                    let mut back = vec![0_u8; len];
                    let to = [(back.as_mut_ptr(), cut), (back.as_mut_ptr().add(cut), len - cut)];
                    space.read(pages.0 as u64 + 3, &to).unwrap();
                    assert!(back == source[..len]);
                }
            }
        }
    }

    #[test]
    fn reports_whose_memory_is_unmapped() {
        let Some(space) = AddressSpace::own(true) else { return println!("skipped: no /proc/self/mem") };
        let page = rustix::param::page_size();
        let pages = Pages::new(2 * page);
        let mut word = [1_u8; 16];
        let range = [(word.as_mut_ptr(), 16)];
        // SAFETY: the test owns the second page and does not access it afterwards; only the kernel accesses it, which
        // must fail.
        unsafe {
            rustix::mm::munmap(pages.0.add(page).cast(), page).unwrap();
            let across = pages.0 as u64 + page as u64 - 4;
            assert_eq!(space.write_in_order(across, &range), Err(TransferError::Remote));
            assert_eq!(space.read(across, &range), Err(TransferError::Remote));
            assert_eq!(space.read(u64::MAX - 64, &range), Err(TransferError::Remote));
            let gone = [(pages.0.add(page), 16)];
            assert_eq!(space.write_in_order(pages.0 as u64, &gone), Err(TransferError::Local));
            assert_eq!(space.read(pages.0 as u64, &gone), Err(TransferError::Local));
        }
    }

    #[test]
    fn a_descriptor_of_something_else_is_no_address_space() {
        assert!(
            AddressSpace::from_peer(fs::open("/dev/null", OFlags::RDWR, Mode::empty()).unwrap()).is_none()
        );
    }
}
