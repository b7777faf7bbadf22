//! Detection of code that can use a connection without the library: system calls of the program's own.
//!
//! The library sees calls of the C library's functions. Bytes that a program writes by a system call of its own would
//! overtake those in the ring, and a read of its own would miss them. So the executable segments of all loaded objects
//! are searched for system call instructions, except those of the C library, of the loader and of libraries whose own
//! system calls do not use sockets. Connections of a program that has others stay on TCP.
//!
//! The search happens when the first connection is about to be moved, and again for objects that were loaded since.

#[cfg(target_arch = "x86_64")]
mod instructions;

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use farcall_shm::Mutex;
use farcall_stats::{Block, Connection, PathReason};

use crate::{config, descriptors, own_fds, sock};

/// Beginnings of the file names of objects that are not searched: the C library and its loader, which call the
/// library's functions' originals; libraries and runtimes whose own system calls do not use sockets of the program;
/// this project's.
const EXCEPTED: [&str; 19] = [
    "libc.so.",
    "libc-2.",
    "ld-linux-",
    "ld-2.",
    "libpthread",
    "librt.so",
    "linux-vdso",
    "libaio.so",
    "libgomp.so",
    "libtcmalloc",
    "libprofiler",
    "libitm.so",
    "libasan.so",
    "liblsan.so",
    "libtsan.so",
    "libubsan.so",
    // Tables in its code decode as instructions.
    "libLLVM",
    // These are libraries of this project, if the program loads them.
    "libibverbs.so",
    "librdmacm.so",
];

/// `true` for the rest of the process once code was found that can make system calls itself.
static IS_FOUND: AtomicBool = AtomicBool::new(false);
/// Generation of the loader's state at the last search, see [`loader_generation`].
static SEARCHED: AtomicU64 = AtomicU64::new(0);
/// Objects that were searched, and what was found.
static STATE: Mutex<State> = Mutex::new(State { searched: Vec::new(), reported: None });

struct State {
    searched: Vec<Object>,
    reported: Option<Reported>,
}

/// Block for the rest of the process. Its label names the code that was found.
struct Reported {
    code: String,
    block: Block<Connection>,
}

/// A loaded object: where it lies, and its program headers.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Object {
    base: u64,
    headers: usize,
}

/// Returns whether code of the program can use connections without the library.
pub fn are_possible() -> bool {
    if config::allows_direct_calls() {
        return false;
    }
    if !IS_FOUND.load(Acquire) && SEARCHED.load(Relaxed) != loader_generation() {
        search();
    }
    IS_FOUND.load(Acquire)
}

/// Called after an object was loaded: connections return to TCP if it can make system calls itself.
pub fn after_load() {
    if own_fds::exist() && are_possible() {
        return_to_tcp();
    }
}

/// Records that `code` can use connections without the library, and returns them to TCP.
pub fn record_found(code: &str) {
    if config::allows_direct_calls() {
        return;
    }
    report(&mut STATE.lock(), code);
    return_to_tcp();
}

/// Returns all connections to TCP. Received bytes that were not read are in rings and not in the kernel, so code that
/// does not call this library would miss them.
fn return_to_tcp() {
    sock::each(|fd, sock| descriptors::return_to_kernel(fd, sock, PathReason::DirectCalls));
}

/// Returns whether an address is in this library.
pub fn is_own(address: usize) -> bool {
    // SAFETY: zeros are valid; `dladdr` fills them, and only searches the loaded objects.
    let [own, other] = [(is_own as *const ()).addr(), address].map(|address| unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        libc::dladdr(std::ptr::without_provenance(address), &raw mut found);
        found.dli_fbase
    });
    own == other
}

/// Called before an object is loaded that the library does not see until the program has used it.
pub fn before_unseen_load() {
    if own_fds::exist() && !config::allows_direct_calls() {
        return_to_tcp();
    }
}

/// Returns whether the object with an address names directories of the objects that it loads (DT_RUNPATH), or any
/// object names directories for all (DT_RPATH).
pub fn has_search_path(address: usize) -> bool {
    let mut search = PathSearch { address: address as u64, is_found: false };
    // SAFETY: a function of the right type, and a search that outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(each_path), (&raw mut search).cast()) };
    search.is_found
}

struct PathSearch {
    address: u64,
    is_found: bool,
}

unsafe extern "C" fn each_path(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    const DT_RPATH: u64 = 15;
    const DT_RUNPATH: u64 = 29;
    // SAFETY: the loader passes a valid object with its headers; `search` is that of the function above.
    let (info, search, headers) = unsafe {
        let info = &*info;
        if info.dlpi_phdr.is_null() {
            return 0;
        }
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize);
        (info, &mut *search.cast::<PathSearch>(), headers)
    };
    let begin = |header: &libc::Elf64_Phdr| info.dlpi_addr.wrapping_add(header.p_vaddr);
    let has_address = headers.iter().any(|header| {
        header.p_type == libc::PT_LOAD && search.address.wrapping_sub(begin(header)) < header.p_memsz
    });
    for header in headers.iter().filter(|header| header.p_type == libc::PT_DYNAMIC) {
        let mut entry = std::ptr::with_exposed_provenance::<[u64; 2]>(begin(header) as usize);
        // SAFETY: the dynamic section of a loaded object, which ends with an entry of zeros.
        while let tag @ 1.. = unsafe { (*entry)[0] } {
            search.is_found |= tag == DT_RPATH || (tag == DT_RUNPATH && has_address);
            // SAFETY: this entry is not the last one.
            entry = unsafe { entry.add(1) };
        }
    }
    c_int::from(search.is_found)
}

/// Acquires the lock that must be free in a forked child.
pub fn lock_for_fork() -> impl Sized {
    STATE.lock()
}

/// Called in a forked child, where the block belongs to the parent.
pub fn enter_child() {
    let mut state = STATE.lock();
    if let Some(Reported { code, block }) = state.reported.take() {
        std::mem::forget(block);
        report(&mut state, &code);
    }
}

fn report(state: &mut State, code: &str) {
    if state.reported.is_none() {
        let block = Block::<Connection>::new(&format!("direct calls in {code}"), 0);
        block.why.set(PathReason::DirectCalls as u64);
        state.reported = Some(Reported { code: code.to_owned(), block });
    }
    IS_FOUND.store(true, Release);
}

/// Returns a number that changes when objects are loaded or unloaded.
fn loader_generation() -> u64 {
    unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, into: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid object, and the number of the caller below.
        unsafe { *into.cast::<u64>() = (*info).dlpi_adds.wrapping_shl(32) ^ (*info).dlpi_subs | 1 << 63 };
        1
    }
    let mut loads = 0_u64;
    // SAFETY: a function of the right type, and a number that outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut loads).cast()) };
    loads
}

/// One search through the loaded objects.
struct Search<'a> {
    state: &'a mut State,
    seen: Vec<Object>,
}

fn search() {
    let mut state = STATE.lock();
    let before = loader_generation();
    let mut search = Search { state: &mut state, seen: Vec::new() };
    // SAFETY: a function of the right type, and a search that outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(each_object), (&raw mut search).cast()) };
    let seen = search.seen;
    state.searched = seen;
    SEARCHED.store(before, Relaxed);
}

unsafe extern "C" fn each_object(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid object; `search` is that of the function above, which waits for the loader.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    let object = Object { base: info.dlpi_addr, headers: info.dlpi_phdr.addr() };
    search.seen.push(object);
    if search.state.searched.contains(&object) || info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader's string, and the number of program headers that it states.
    let (name, headers) = unsafe {
        let name = if info.dlpi_name.is_null() { c"" } else { CStr::from_ptr(info.dlpi_name) };
        (name.to_string_lossy(), std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize))
    };
    let file = name.rsplit('/').next().unwrap_or_default();
    if EXCEPTED.iter().any(|excepted| file.starts_with(excepted)) {
        return 0;
    }
    let own_address = (each_object as *const ()).addr() as u64;
    for header in
        headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0)
    {
        let begin = info.dlpi_addr.wrapping_add(header.p_vaddr);
        if own_address.wrapping_sub(begin) < header.p_memsz {
            // This library.
            return 0;
        }
        let is_found = if header.p_flags & libc::PF_R == 0 {
            // It cannot be searched.
            true
        } else {
            let at = std::ptr::with_exposed_provenance::<u8>(begin as usize);
            // SAFETY: the loader keeps the object mapped while it calls this function, and the segment can be read.
            uses_sockets(unsafe { std::slice::from_raw_parts(at, header.p_filesz as usize) })
        };
        if is_found {
            let program = std::env::current_exe().unwrap_or_default();
            let name = if name.is_empty() { program.to_string_lossy() } else { name.clone() };
            report(search.state, &name);
            return 1;
        }
    }
    0
}

/// Returns whether code has a system call instruction that can concern a socket.
#[cfg(target_arch = "x86_64")]
fn uses_sockets(code: &[u8]) -> bool {
    let mut is_found = false;
    instructions::each_system_call(code, |_, number| {
        is_found = !matches!(number, instructions::Number::Known(number) if is_harmless(number));
        !is_found
    });
    is_found
}

/// Returns whether code has a system call instruction; its number is not determined.
#[cfg(target_arch = "aarch64")]
fn uses_sockets(code: &[u8]) -> bool {
    const SVC_0: [u8; 4] = 0xD400_0001_u32.to_le_bytes();
    code.as_chunks::<4>().0.contains(&SVC_0)
}

/// Returns whether a system call neither uses nor passes on a descriptor of a socket.
#[cfg(target_arch = "x86_64")]
fn is_harmless(number: u32) -> bool {
    const HARMLESS: [i64; 50] = [
        libc::SYS_mmap,
        libc::SYS_mprotect,
        libc::SYS_munmap,
        libc::SYS_brk,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sched_yield,
        libc::SYS_mremap,
        libc::SYS_msync,
        libc::SYS_mincore,
        libc::SYS_madvise,
        libc::SYS_pause,
        libc::SYS_nanosleep,
        libc::SYS_getitimer,
        libc::SYS_alarm,
        libc::SYS_setitimer,
        libc::SYS_getpid,
        libc::SYS_exit,
        libc::SYS_kill,
        libc::SYS_uname,
        libc::SYS_gettimeofday,
        libc::SYS_getrlimit,
        libc::SYS_getrusage,
        libc::SYS_sysinfo,
        libc::SYS_getuid,
        libc::SYS_getgid,
        libc::SYS_geteuid,
        libc::SYS_getegid,
        libc::SYS_getppid,
        libc::SYS_sigaltstack,
        libc::SYS_arch_prctl,
        libc::SYS_gettid,
        libc::SYS_time,
        libc::SYS_futex,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_getaffinity,
        libc::SYS_set_tid_address,
        libc::SYS_clock_gettime,
        libc::SYS_clock_getres,
        libc::SYS_clock_nanosleep,
        libc::SYS_exit_group,
        libc::SYS_tgkill,
        libc::SYS_mbind,
        libc::SYS_set_mempolicy,
        libc::SYS_set_robust_list,
        libc::SYS_getcpu,
        libc::SYS_getrandom,
        libc::SYS_membarrier,
        libc::SYS_rseq,
    ];
    HARMLESS.contains(&i64::from(number))
}
