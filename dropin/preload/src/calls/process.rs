//! Other programs start.

use std::ffi::{c_char, c_int, c_void};

use farcall_stats::Why;
use libc::{FILE, pid_t};

use super::export;
use crate::{descriptors, real, sock};

export! {
    fn posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *mut c_char, variables: *const *mut c_char,
    ) -> c_int {
        descriptors::before_spawn();
        // SAFETY: the caller's promise, here and in all of these.
        unsafe { real::posix_spawn(pid, path, actions, attributes, arguments, variables) }
    }

    fn posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *mut c_char, variables: *const *mut c_char,
    ) -> c_int {
        descriptors::before_spawn();
        // SAFETY: as above.
        unsafe { real::posix_spawnp(pid, file, actions, attributes, arguments, variables) }
    }

    fn execve(path: *const c_char, arguments: *const *const c_char, variables: *const *const c_char) -> c_int {
        descriptors::before_exec();
        // SAFETY: as above.
        unsafe { real::execve(path, arguments, variables) }
    }

    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
        descriptors::before_exec();
        // SAFETY: as above.
        unsafe { real::execv(path, arguments) }
    }

    fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
        descriptors::before_exec();
        // SAFETY: as above.
        unsafe { real::execvp(file, arguments) }
    }

    fn execvpe(file: *const c_char, arguments: *const *const c_char, variables: *const *const c_char) -> c_int {
        descriptors::before_exec();
        // SAFETY: as above.
        unsafe { real::execvpe(file, arguments, variables) }
    }

    fn fexecve(fd: c_int, arguments: *const *const c_char, variables: *const *const c_char) -> c_int {
        descriptors::before_exec();
        // SAFETY: as above.
        unsafe { real::fexecve(fd, arguments, variables) }
    }

    // What the C library's streams read, write and close does not pass here.
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        if let Some(sock) = sock::get(fd) {
            descriptors::hand_on(fd, &sock, Why::KernelFeature);
            sock::take(fd);
        }
        // SAFETY: as above.
        unsafe { real::fdopen(fd, mode) }
    }

    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        if let Some(sock) = sock::get(fd) {
            sock.demote(Why::KernelFeature);
        }
        // SAFETY: as above.
        unsafe { real::vdprintf(fd, format, arguments) }
    }
}

/// A function of the C library's that takes a list of arguments: prepares for another program, and goes there.
#[cfg(target_arch = "x86_64")]
macro_rules! exec_list {
    ($($name:ident, $real:ident;)*) => {
        $(
            extern "C" fn $real() -> *mut c_void {
                descriptors::before_exec();
                // SAFETY: a C string; the loader's own function.
                unsafe { libc::dlsym(libc::RTLD_NEXT, concat!(stringify!($name), "\0").as_ptr().cast()) }
            }

            /// See its manual page.
            ///
            /// # Safety
            /// As the manual page says.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() -> c_int {
                // The arguments in registers are kept, those on the stack stay where they are.
                std::arch::naked_asm!(
                    "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                    "call {real}",
                    "mov r11, rax",
                    "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                    "jmp r11",
                    real = sym $real,
                )
            }
        )*
    };
}

#[cfg(target_arch = "x86_64")]
exec_list! {
    execl, find_execl;
    execlp, find_execlp;
    execle, find_execle;
}
