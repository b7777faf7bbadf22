//! Memory of every kind that a program may register.

use std::fs::File;
use std::io::{self, Write};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use rustix::mm::{MapFlags, ProtFlags};

use super::call::Memory;

/// Maximum length of a stack region in bytes.
const STACK_BYTES: usize = 64 << 10;

/// Memory of this process, freed when this is dropped.
pub(super) enum Backing {
    Heap { _bytes: Vec<u8>, at: *mut u8 },
    Mapped { at: *mut u8, len: usize },
    Stack { at: *mut u8, end: Option<mpsc::Sender<()>>, thread: Option<JoinHandle<()>> },
}

impl Backing {
    /// Allocates at least `len` bytes.
    pub(super) fn new(memory: Memory, len: usize) -> io::Result<Self> {
        let all = ProtFlags::READ | ProtFlags::WRITE;
        match memory {
            Memory::Heap => {
                let mut bytes = vec![0; len + 16];
                // An odd address: registered memory need not be aligned.
                let at = bytes.as_mut_ptr().wrapping_add(7 + bytes.as_ptr() as usize % 2);
                at.expose_provenance();
                Ok(Self::Heap { _bytes: bytes, at })
            }
            Memory::Stack => Self::stack(len),
            Memory::SharedFile => Self::file(len, MapFlags::SHARED),
            Memory::PrivateFile => Self::file(len, MapFlags::PRIVATE),
            Memory::ReadOnly => Self::anonymous(len, ProtFlags::READ, MapFlags::PRIVATE),
            Memory::HugePages => {
                Self::anonymous(len.next_multiple_of(2 << 20), all, MapFlags::PRIVATE | MapFlags::HUGETLB)
            }
        }
    }

    fn anonymous(len: usize, protection: ProtFlags, flags: MapFlags) -> io::Result<Self> {
        // SAFETY: the call creates a new mapping at an address that the kernel chooses, so it replaces no existing
        // mapping.
        let at = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, protection, flags) }?;
        at.expose_provenance();
        Ok(Self::Mapped { at: at.cast(), len })
    }

    fn file(len: usize, flags: MapFlags) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("farcall-conformance-{}-{number}", std::process::id()));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        file.write_all(&vec![0; len])?;
        // SAFETY: the call creates a new mapping at an address that the kernel chooses, so it replaces no existing
        // mapping. The file has no name any more and only this process has it open, so it is not truncated.
        let at = unsafe {
            rustix::mm::mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0)
        }?;
        at.expose_provenance();
        Ok(Self::Mapped { at: at.cast(), len })
    }

    fn stack(len: usize) -> io::Result<Self> {
        if len > STACK_BYTES {
            return Err(io::Error::other(format!("at most {STACK_BYTES} bytes of stack")));
        }
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES * 4).spawn(move || {
            let mut bytes = [0_u8; STACK_BYTES];
            // If the receiver has been dropped, the wait below ends immediately.
            let _ = tell.send(bytes.as_mut_ptr().expose_provenance());
            // Waits until this memory is dropped.
            let _ = ended.recv();
            std::hint::black_box(&mut bytes);
        })?;
        let at = told.recv().map_err(io::Error::other)?;
        Ok(Self::Stack { at: ptr::with_exposed_provenance_mut(at), end: Some(end), thread: Some(thread) })
    }

    pub(super) fn addr(&self) -> *mut u8 {
        match self {
            Self::Heap { at, .. } | Self::Mapped { at, .. } | Self::Stack { at, .. } => *at,
        }
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        match self {
            Self::Heap { .. } => {}
            Self::Mapped { at, len } => {
                // SAFETY: this object created the mapping and unmaps it once. `Region` drops the registration before
                // this memory, so no operation accesses it.
                // An unmap of a valid mapping cannot fail, so the result is ignored.
                let _ = unsafe { rustix::mm::munmap(at.cast(), *len) };
            }
            Self::Stack { end, thread, .. } => {
                drop(end.take());
                if let Some(thread) = thread.take() {
                    // The thread only waits; it cannot have panicked.
                    let _ = thread.join();
                }
            }
        }
    }
}
