//! Functions that start programs and processes.

use std::ffi::{c_char, c_int, c_void};

use libc::{FILE, pid_t};

use super::opening::with_free_fd_for;
use super::{export, export_before};
use crate::{descriptors, libc_next};

/// Returns whether `clone` with these flags creates a process, with memory or descriptors of its own.
pub(super) fn copies_descriptors(flags: c_int) -> bool {
    const THREAD: c_int = libc::CLONE_VM | libc::CLONE_FILES;
    flags & THREAD != THREAD
}

export_before! { descriptors::before_spawn:
    fn posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *mut c_char, variables: *const *mut c_char
    ) -> c_int;
    fn posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *mut c_char, variables: *const *mut c_char
    ) -> c_int;
    fn system(command: *const c_char) -> c_int;
    fn wordexp(words: *const c_char, into: *mut c_void, flags: c_int) -> c_int;
}

export_before! { descriptors::before_raw_fork:
    // Without the handlers of a fork.
    fn _Fork() -> pid_t;
}

export_before! { descriptors::before_exec:
    fn execve(path: *const c_char, arguments: *const *const c_char, variables: *const *const c_char) -> c_int;
    fn execveat(
        directory: c_int, path: *const c_char, arguments: *const *const c_char, variables: *const *const c_char,
        flags: c_int
    ) -> c_int;
    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int;
    fn execvpe(file: *const c_char, arguments: *const *const c_char, variables: *const *const c_char) -> c_int;
    fn fexecve(fd: c_int, arguments: *const *const c_char, variables: *const *const c_char) -> c_int;
}

export! {
    // The child gets this descriptor by another number, whatever its flags are.
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
        descriptors::record_spawn_action(fd);
        // SAFETY: `actions` is the program's initialized object, which the C library alone uses.
        unsafe { libc_next::posix_spawn_file_actions_adddup2(actions, fd, new) }
    }

    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
        descriptors::before_spawn();
        // SAFETY: both strings are the program's, which the C library alone reads.
        with_free_fd_for(|| unsafe { libc_next::popen(command, mode) })
    }
}

#[cfg(target_arch = "x86_64")]
mod with_lists {
    use std::ffi::{c_int, c_void};

    use super::super::forward::{forward, next};
    use crate::descriptors;

    extern "C" fn before_execl() -> *mut c_void {
        descriptors::before_exec();
        next(c"execl")
    }

    extern "C" fn before_execlp() -> *mut c_void {
        descriptors::before_exec();
        next(c"execlp")
    }

    extern "C" fn before_execle() -> *mut c_void {
        descriptors::before_exec();
        next(c"execle")
    }

    /// Called before `clone`, which runs no fork handlers.
    extern "C" fn before_clone(_function: usize, _stack: usize, flags: c_int) -> *mut c_void {
        if super::copies_descriptors(flags) {
            descriptors::before_raw_fork();
        }
        next(c"clone")
    }

    forward! {
        execl => before_execl;
        execlp => before_execlp;
        execle => before_execle;
        clone => before_clone;
        __clone => before_clone;
    }
}
