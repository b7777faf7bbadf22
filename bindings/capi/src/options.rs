//! Options, which later versions append to, and the version itself.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use farcall::binding::{Failure, Options};
use farcall::select::{Selection, Wish};

use crate::argument::{Out, object, text};
use crate::boundary::returned;

/// The version of this header: major << 16 | minor << 8 | patch.
pub const FARCALL_VERSION: u32 = 0x00_01_00;

/// The version of the library that is loaded, as FARCALL_VERSION is that of the header.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_version() -> u32 {
    FARCALL_VERSION
}

/// How something is opened. Where options are asked for, null stands for the usual ones.
///
/// Always set by farcall_options_init first: later versions append fields. The library reads options during the call
/// only.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct farcall_options {
    /// sizeof(farcall_options); set by farcall_options_init.
    pub options_len_bytes: usize,
    /// "softnic", "ibv" or "auto"; null: "auto".
    pub provider: *const c_char,
    /// A device of libibverbs; null: the first with an active port.
    pub device: *const c_char,
    /// A preset for clients of remote calls and stores; null: the client chooses.
    pub preset: *const c_char,
    /// How long connecting may take, in microseconds; 0: the usual 5 s.
    pub connect_timeout_us: u64,
    /// How long a call may take, in microseconds; 0: for ever.
    pub call_timeout_us: u64,
    /// The device's GID; -1: the best.
    pub gid_index: i32,
    /// The server thread that a client of remote calls connects to.
    pub thread: u16,
    /// How many threads a server of remote calls has; 0: one.
    pub threads: u16,
    /// Not 0: functions of a stream or a listener answer FARCALL_WOULD_BLOCK instead of waiting, and it has a descriptor
    /// for poll and epoll.
    pub nonblocking: u32,
    /// 0.
    pub reserved: u32,
}

const USUAL: farcall_options = farcall_options {
    options_len_bytes: size_of::<farcall_options>(),
    provider: std::ptr::null(),
    device: std::ptr::null(),
    preset: std::ptr::null(),
    connect_timeout_us: 0,
    call_timeout_us: 0,
    gid_index: -1,
    thread: 0,
    threads: 0,
    nonblocking: 0,
    reserved: 0,
};

/// Sets options to the usual ones. `options_len_bytes` is sizeof(farcall_options), by which the library knows the version
/// of the header.
///
/// FARCALL_INVALID if the length is none of this library's version or an earlier one: the program was compiled for a
/// later one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_options_init(
    options: *mut farcall_options,
    options_len_bytes: usize,
) -> c_int {
    returned(|| {
        if options_len_bytes != size_of::<farcall_options>() {
            return Err(unknown_length(options_len_bytes));
        }
        // SAFETY: the program's promise: they are its options.
        unsafe { Out::new(options, "options")? }.set(USUAL);
        Ok(())
    })
}

fn unknown_length(options_len_bytes: usize) -> Failure {
    let known = size_of::<farcall_options>();
    Failure::invalid(format!(
        "options of {options_len_bytes} bytes; this version knows {known}: call farcall_options_init first, and use a \
         library that is no older than the header"
    ))
}

fn microseconds(us: u64) -> Option<Duration> {
    (us != 0).then(|| Duration::from_micros(us))
}

/// Reads a program's options.
///
/// # Safety
/// As of [`object`]; the texts are null or end with a zero byte.
pub(crate) unsafe fn read(options: *const farcall_options) -> Result<Options, Failure> {
    if options.is_null() {
        return Ok(Options::default());
    }
    // The length comes first, and is all that an unknown version can be asked.
    // SAFETY: passed on.
    let options_len_bytes = *unsafe { object(options.cast::<usize>(), "options")? };
    if options_len_bytes != size_of::<farcall_options>() {
        return Err(unknown_length(options_len_bytes));
    }
    // SAFETY: passed on.
    let given = unsafe { object(options, "options")? };
    let word = |start: *const c_char, name| {
        // SAFETY: passed on.
        if start.is_null() { Ok(None) } else { unsafe { text(start, name) }.map(Some) }
    };
    let wish = word(given.provider, "options.provider")?.map(str::parse::<Wish>).transpose();
    let device = word(given.device, "options.device")?.map(str::to_owned);
    let wish = wish.map_err(Failure::invalid)?.unwrap_or_default();
    Ok(Options {
        selection: Selection { wish, device, gid_index: u32::try_from(given.gid_index).ok() },
        preset: word(given.preset, "options.preset")?.map(str::to_owned),
        thread: given.thread,
        threads: given.threads,
        connect_timeout: microseconds(given.connect_timeout_us),
        call_timeout: microseconds(given.call_timeout_us),
        nonblocking: given.nonblocking != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_package() {
        let parts: Vec<u32> =
            env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse().unwrap()).collect();
        assert_eq!(farcall_version(), parts[0] << 16 | parts[1] << 8 | parts[2]);
    }
}
