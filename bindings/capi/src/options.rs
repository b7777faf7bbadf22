//! Options, to which later versions append fields, and the version of the library.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use farcall::binding::{Failure, Options};
use farcall::select::{ProviderChoice, Selection};

use crate::argument::{Out, object, text};
use crate::boundary::returned;

/// Version of this header: major << 16 | minor << 8 | patch.
pub const FARCALL_VERSION: u32 = 0x00_01_00;

/// Returns the version of the loaded library, in the format of FARCALL_VERSION.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_version() -> u32 {
    FARCALL_VERSION
}

/// Options of a client, a server, a listener or a stream. Functions that take options accept a null pointer for the
/// defaults.
///
/// Initialize them with farcall_options_init, because later versions append fields. The library reads the options and
/// the texts in them only during the function call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct farcall_options {
    /// sizeof(farcall_options); set by farcall_options_init.
    pub options_len_bytes: usize,
    /// Provider: "softnic", "ibv" or "auto"; null: "auto".
    pub provider: *const c_char,
    /// Name of a device of libibverbs; null: the first device with an active port.
    pub device: *const c_char,
    /// Preset of a client of remote calls or of a store; null: the client chooses.
    pub preset: *const c_char,
    /// Timeout of connecting in microseconds; 0: 5 seconds.
    pub connect_timeout_us: u64,
    /// Timeout of a remote call in microseconds; 0: none.
    pub call_timeout_us: u64,
    /// Index of a GID of the device; -1: the best GID.
    pub gid_index: i32,
    /// Index of the server thread to which a client of remote calls connects.
    pub thread: u16,
    /// Number of threads of a server of remote calls; 0: one.
    pub threads: u16,
    /// Not 0: functions of the stream or listener return FARCALL_WOULD_BLOCK instead of waiting, and it has a
    /// descriptor for poll and epoll.
    pub nonblocking: u32,
    /// Reserved; 0.
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

/// Sets options to the defaults. `options_len_bytes` is sizeof(farcall_options), from which the library derives the
/// version of the header.
///
/// Returns FARCALL_INVALID if neither this version of the library nor an earlier one has options of this length: the
/// program was compiled with the header of a later version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_options_init(
    options: *mut farcall_options,
    options_len_bytes: usize,
) -> c_int {
    returned(|| {
        if options_len_bytes != size_of::<farcall_options>() {
            return Err(unknown_length(options_len_bytes));
        }
        // SAFETY: farcall(3), "Pointers": unless null or misaligned, `options` addresses a farcall_options that is
        // writable until this function returns. The length is that of this version's header.
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

/// Reads the options of a program. A null pointer stands for the defaults.
///
/// # Errors
/// Returns `FARCALL_INVALID` for a misaligned pointer, an unknown length, a text that is not UTF-8 and an unknown
/// provider.
///
/// # Safety
/// Unless null or misaligned, `options` addresses options that begin with their length in bytes. They are readable and
/// not written until this function returns. So are their texts, which are null or end with a zero byte.
pub(crate) unsafe fn read(options: *const farcall_options) -> Result<Options, Failure> {
    if options.is_null() {
        return Ok(Options::default());
    }
    // The length is the first field in every version, and the only one that is read before the version is known.
    // SAFETY: by the contract of `read` the options begin with their length, which is readable until `read` returns.
    let options_len_bytes = *unsafe { object(options.cast::<usize>(), "options")? };
    if options_len_bytes != size_of::<farcall_options>() {
        return Err(unknown_length(options_len_bytes));
    }
    // SAFETY: the length is that of this version, so by the contract of `read` all fields are readable, and not
    // written, until `read` returns.
    let given = unsafe { object(options, "options")? };
    let word = |start: *const c_char, name| {
        // SAFETY: by the contract of `read` a text that is not null ends with a zero byte and is not written until
        // `read` returns, which copies what it stores.
        if start.is_null() { Ok(None) } else { unsafe { text(start, name) }.map(Some) }
    };
    let choice = word(given.provider, "options.provider")?.map(str::parse::<ProviderChoice>).transpose();
    let device = word(given.device, "options.device")?.map(str::to_owned);
    let choice = choice.map_err(Failure::invalid)?.unwrap_or_default();
    Ok(Options {
        selection: Selection { provider: choice, device, gid_index: u32::try_from(given.gid_index).ok() },
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
