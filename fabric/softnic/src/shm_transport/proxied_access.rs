//! Execution of accesses on behalf of a peer that cannot reach the memory itself: it runs as another user, this
//! process's address space cannot be passed to it, or the operation is an atomic, which only a process that has the
//! memory mapped can execute.
//!
//! System calls move the bytes between this process's memory and a memfd of the peer. Memory that the program has
//! unmapped is therefore an error and not a signal. (The processor executes an atomic; see [`atomic`].)

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};

use farcall_shm::{AtomicChange, before_store, update_word};
use farcall_verbs::Access as Rights;
use rustix::fs::{self, SealFlags};
use rustix::io::Errno;

use super::ShmTransport;
use super::qp::ACCESS_BYTES;
use crate::process::rendezvous::{Access, Operation, Refusal};

impl ShmTransport {
    /// Executes one access that arrived over the socket of `client`. Returns the previous value for an atomic,
    /// otherwise 0.
    ///
    /// # Errors
    /// Returns the reason of refusal.
    pub(super) fn execute_for_peer(
        &self,
        client: u64,
        access: &Access,
        fds: &[OwnedFd],
    ) -> Result<u64, Refusal> {
        let qp = self.qp(access.dst_qpn).ok_or(Refusal::UnknownQp)?;
        let (need, receive) = match access.operation {
            Operation::Read => (Rights::REMOTE_READ, false),
            Operation::Write => (Rights::REMOTE_WRITE, false),
            Operation::Place => (Rights::LOCAL_WRITE, true),
            Operation::FetchAdd { .. } | Operation::CompareSwap { .. } => (Rights::REMOTE_ATOMIC, false),
        };
        // Revocation first changes what the checks below read, and then waits for this lock. An access that passed them
        // has therefore ended when revocation returns.
        let _turn = self.core.access_turn.lock();
        let accept = qp.accepts_from(client, access.incarnation)?;
        if receive && !qp.offers_receive() {
            return Err(Refusal::Invalid);
        }
        let pd = if receive { qp.receives_pd } else { qp.pd };
        let grant = self.core.process.regions.grant(access.rkey, pd, receive).ok_or(Refusal::UnknownKey)?;
        let rights = if receive { grant.access } else { grant.access & accept.access() };
        let offset = access.addr.checked_sub(grant.addr).ok_or(Refusal::UnknownKey)?;
        let len_bytes = u64::from(access.len_bytes);
        if !rights.contains(need) || offset > grant.len_bytes || len_bytes > grant.len_bytes - offset {
            return Err(Refusal::UnknownKey);
        }
        let addr = grant.memory_addr + offset;
        if let Some(change) = change_of(access.operation) {
            return atomic(access, addr, change);
        }
        let window = fds.first().ok_or(Refusal::Invalid)?.as_fd();
        if access.len_bytes > ACCESS_BYTES || !is_sealed(window) {
            return Err(Refusal::Invalid);
        }
        let memory = Memory { addr, window };
        match access.operation {
            Operation::Read => memory.read(len_bytes),
            _ => memory.write_in_order(len_bytes),
        }
        .map(|()| 0)
    }
}

/// Returns whether the file can neither block nor shrink during a transfer. Only a memfd can be sealed.
fn is_sealed(fd: BorrowedFd<'_>) -> bool {
    fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK))
}

/// Local memory from `addr`, and the peer's memfd from its start.
struct Memory<'a> {
    addr: u64,
    window: BorrowedFd<'a>,
}

impl Memory<'_> {
    fn read(&self, len_bytes: u64) -> Result<(), Refusal> {
        self.all(0, len_bytes, |fd, memory, len, at| {
            // SAFETY: `pwrite` only reads `memory`, and the kernel returns EFAULT if it is not mapped.
            unsafe { libc::pwrite(fd, memory, len, at) }
        })
    }

    /// Writes the last 8 bytes after all others, and their final byte last, like every other placement of data.
    fn write_in_order(&self, len_bytes: u64) -> Result<(), Refusal> {
        let body = len_bytes.saturating_sub(8);
        for (from, to) in
            [(0, body), (body, len_bytes.saturating_sub(1)), (len_bytes.saturating_sub(1), len_bytes)]
        {
            before_store();
            self.all(from, to, |fd, memory, len, at| {
                // SAFETY: the range is inside a registered region: `execute_for_peer` checked it under `access_turn`,
                // for which revocation waits. The contract of `reg_mr` excludes references to memory that peers may
                // write. The kernel returns EFAULT if the memory is not mapped.
                unsafe { libc::pread(fd, memory, len, at) }
            })?;
            fence(Ordering::SeqCst);
        }
        Ok(())
    }

    fn all(
        &self,
        from: u64,
        to: u64,
        call: impl Fn(libc::c_int, *mut libc::c_void, usize, libc::off_t) -> libc::ssize_t,
    ) -> Result<(), Refusal> {
        let mut at = from;
        while at < to {
            let memory = std::ptr::with_exposed_provenance_mut((self.addr + at) as usize);
            let moved = call(self.window.as_raw_fd(), memory, (to - at) as usize, at as libc::off_t);
            if moved < 0 {
                match Errno::from_io_error(&std::io::Error::last_os_error()) {
                    Some(Errno::INTR) => continue,
                    Some(Errno::FAULT) => return Err(Refusal::Fault),
                    _ => return Err(Refusal::Invalid),
                }
            }
            if moved == 0 {
                return Err(Refusal::Invalid);
            }
            at += moved as u64;
        }
        Ok(())
    }
}

fn change_of(operation: Operation) -> Option<AtomicChange> {
    match operation {
        Operation::FetchAdd { add } => Some(AtomicChange::Add(add)),
        Operation::CompareSwap { compare, swap } => Some(AtomicChange::Swap { if_equal: compare, new: swap }),
        _ => None,
    }
}

/// Executes an operation that is atomic with respect to the program's own atomics. The kernel first checks that the
/// memory is mapped and writable. If the program unmaps it between the check and the operation, against the contract of
/// `reg_mr`, the program receives the signal that an access of its own would raise.
fn atomic(access: &Access, addr: u64, change: AtomicChange) -> Result<u64, Refusal> {
    if access.len_bytes != 8 || !access.addr.is_multiple_of(8) || !addr.is_multiple_of(8) {
        return Err(Refusal::Invalid);
    }
    if !is_writable(addr) {
        return Err(Refusal::Fault);
    }
    let place = std::ptr::with_exposed_provenance_mut(addr as usize);
    // SAFETY: `execute_for_peer` checked under `access_turn` that `addr` is inside a registered region; deregistration
    // waits for that lock, and by the contract of `reg_mr` the region stays mapped until then. `addr` is a multiple of
    // 8, and that contract excludes references to memory that peers may change.
    Ok(unsafe { update_word(place, change) })
}

/// Returns whether a word is mapped and writable. The kernel adds 0 to it atomically, which faults in a missing page
/// and changes no value.
fn is_writable(addr: u64) -> bool {
    const ADD_0_THEN_IF_EQUAL_0: libc::c_int = (libc::FUTEX_OP_ADD & 0xF) << 28;
    let nobody_waits_here = 0_u32;
    // SAFETY: `nobody_waits_here` is a local variable at which no thread waits, so the call wakes none. The kernel
    // checks `addr` and adds 0 to it, which changes no value.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            &raw const nobody_waits_here,
            libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG,
            0,
            0_usize,
            addr,
            ADD_0_THEN_IF_EQUAL_0,
        )
    };
    result >= 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    #[test]
    fn writable_is_what_an_atomic_can_change() {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: creates an anonymous mapping at an address that the kernel chooses, so no other code uses it.
        unsafe {
            let page = mmap_anonymous(std::ptr::null_mut(), 4096, prot, MapFlags::PRIVATE).unwrap();
            assert!(is_writable(page as u64), "though it was never touched");
            page.cast::<u64>().write(77);
            assert!(is_writable(page as u64 + 8) && page.cast::<u64>().read() == 77);
            mprotect(page, 4096, MprotectFlags::READ).unwrap();
            assert!(!is_writable(page as u64));
            munmap(page, 4096).unwrap();
            assert!(!is_writable(page as u64));
        }
    }
}
