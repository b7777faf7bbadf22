//! Byte streams.

use std::ffi::{c_char, c_int, c_void};
use std::io::{Read, Write};
use std::time::Duration;

use ::farcall_stream::{StreamListener, StreamSocket};
use farcall::binding::{Exclusive, Failure, Options};

use crate::argument::{Out, bytes, object, room, text, write_text};
use crate::boundary::{made, returned, taken_back};
use crate::options::{self, farcall_options};

/// A listener, which accepts byte streams. Used by one thread at a time: a function that finds it in use fails with
/// FARCALL_BUSY.
pub struct farcall_listener(Exclusive<(StreamListener, Options)>);

/// A byte stream, which carries reliable, ordered bytes in both directions. Used by one thread at a time: a function
/// that finds it in use fails with FARCALL_BUSY.
pub struct farcall_stream(Exclusive<StreamSocket>);

/// Listens for streams at `address`, "host:port". For port 0 the system chooses a port.
///
/// *listener belongs to the program until farcall_listener_close. It is null after a failure. `options` may be null;
/// `nonblocking` also applies to the accepted streams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_listen(
    address: *const c_char,
    options: *const farcall_options,
    listener: *mut *mut farcall_listener,
) -> c_int {
    // SAFETY: farcall(3), "Pointers": `address`, `options` and its texts are readable and not written, and `*listener`
    // is writable, until this function returns. `made`, `options::read` and `text` require no more.
    unsafe {
        made(listener, || {
            let options = options::read(options)?;
            let listener = options.listen(text(address, "address")?)?;
            Ok(farcall_listener(Exclusive::new((listener, options))))
        })
    }
}

/// Writes the address at which a listener listens, as text with a zero byte. A buffer of 64 bytes is sufficient.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_listener_address(
    listener: *const farcall_listener,
    address: *mut c_char,
    address_room_bytes: usize,
) -> c_int {
    returned(|| {
        // SAFETY: farcall(3), "Pointers": `listener` is an open listener until this function returns.
        let at = unsafe { object(listener, "listener")? }.0.with(|(listener, _)| Ok(listener.address()?))?;
        // SAFETY: farcall(3), "Pointers": the `address_room_bytes` bytes from `address` are writable until this
        // function returns.
        unsafe { write_text(&at.to_string(), address, address_room_bytes, "address") }
    })
}

/// Returns a descriptor for poll and epoll in *fd. After farcall_listener_accept has returned FARCALL_WOULD_BLOCK, the
/// descriptor is readable when accepting may continue. It belongs to the listener: the program must not close it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_listener_fd(listener: *mut farcall_listener, fd: *mut c_int) -> c_int {
    returned(|| {
        // SAFETY: farcall(3), "Pointers": `listener` is an open listener, and `*fd` is writable, until this function
        // returns.
        let (listener, into) = unsafe { (object(listener, "listener")?, Out::new(fd, "fd")?) };
        into.set(listener.0.with(|(listener, _)| Ok(listener.pollable_fd()?))?);
        Ok(())
    })
}

/// Waits for a stream and accepts it. If the options of the listener have `nonblocking`, returns FARCALL_WOULD_BLOCK
/// instead of waiting.
///
/// *stream belongs to the program until farcall_stream_close or farcall_stream_reset. It is null after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_listener_accept(
    listener: *mut farcall_listener,
    stream: *mut *mut farcall_stream,
) -> c_int {
    // SAFETY: farcall(3), "Pointers": `listener` is an open listener, and `*stream` is writable, until this function
    // returns.
    unsafe {
        made(stream, || {
            let listener = object(listener, "listener")?;
            let accepted = listener.0.with(|(listener, options)| options.accept(listener))?;
            Ok(farcall_stream(Exclusive::new(accepted)))
        })
    }
}

/// Closes a listener and frees it. Accepted streams remain open. No other function may be running with it, or be
/// called with it later. A null pointer is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_listener_close(listener: *mut farcall_listener) {
    // SAFETY: farcall(3), "Pointers": `listener` is null or a listener of farcall_listen that is closed only once,
    // here, and no other thread uses it.
    returned(|| unsafe { taken_back(listener) }.map(drop));
}

/// Connects to a listener at `address`, "host:port". Waits until the stream is established, even if the options have
/// `nonblocking`.
///
/// *stream belongs to the program until farcall_stream_close or farcall_stream_reset. It is null after a failure.
/// `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_connect(
    address: *const c_char,
    options: *const farcall_options,
    stream: *mut *mut farcall_stream,
) -> c_int {
    // SAFETY: farcall(3), "Pointers": `address`, `options` and its texts are readable and not written, and `*stream`
    // is writable, until this function returns. `made`, `options::read` and `text` require no more.
    unsafe {
        made(stream, || {
            let stream = options::read(options)?.connect_stream(text(address, "address")?)?;
            Ok(farcall_stream(Exclusive::new(stream)))
        })
    }
}

/// Runs `action` with a stream and writes the length that it returns to `*moved_bytes`; 0 after a failure.
///
/// # Safety
/// Until this function returns, `stream` meets the contract of [`object`], and `moved_bytes` that of [`Out::new`].
unsafe fn moved(
    stream: *mut farcall_stream,
    moved_bytes: *mut usize,
    action: impl FnOnce(&mut StreamSocket) -> Result<usize, Failure>,
) -> c_int {
    returned(|| {
        // SAFETY: by the contract of `moved` the pointers meet those of `object` and `Out::new` until it returns,
        // which is after `action`.
        let (stream, into) = unsafe { (object(stream, "stream")?, Out::new(moved_bytes, "the length")?) };
        into.set(0);
        into.set(stream.0.with(action)?);
        Ok(())
    })
}

/// Reads the available bytes, at most `room_bytes`. Waits if there are none. *read_bytes is their number; it is 0 at
/// the end of the peer's stream, and if `room_bytes` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_read(
    stream: *mut farcall_stream,
    into: *mut c_void,
    room_bytes: usize,
    read_bytes: *mut usize,
) -> c_int {
    // SAFETY: farcall(3), "Pointers": `stream` is an open stream, and the `room_bytes` bytes from `into` and
    // `*read_bytes` are writable, until this function returns.
    unsafe {
        moved(stream, read_bytes, |stream| {
            let into = room(into, room_bytes, "into")?;
            // An empty buffer receives 0 bytes, which is not the end of the stream.
            if into.is_empty() { Ok(0) } else { Ok(stream.read(into)?) }
        })
    }
}

/// Writes as many bytes as there is space for. Waits if there is none. *written_bytes is their number. They arrive at
/// the peer without further function calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_write(
    stream: *mut farcall_stream,
    from: *const c_void,
    from_len_bytes: usize,
    written_bytes: *mut usize,
) -> c_int {
    // SAFETY: farcall(3), "Pointers": `stream` is an open stream, the `from_len_bytes` bytes from `from` are readable
    // and not written, and `*written_bytes` is writable, until this function returns.
    unsafe {
        moved(stream, written_bytes, |stream| {
            let from = bytes(from, from_len_bytes, "from")?;
            if from.is_empty() { Ok(0) } else { Ok(stream.write(from)?) }
        })
    }
}

/// Sets the timeouts of reads and writes in microseconds; 0: none. A read or write that exceeds its timeout returns
/// FARCALL_TIMED_OUT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_set_timeouts(
    stream: *mut farcall_stream,
    read_timeout_us: u64,
    write_timeout_us: u64,
) -> c_int {
    returned(|| {
        let timeout = |us: u64| (us != 0).then(|| Duration::from_micros(us));
        // SAFETY: farcall(3), "Pointers": `stream` is an open stream until this function returns.
        unsafe { object(stream, "stream")? }.0.with(|stream| {
            stream.set_timeouts(timeout(read_timeout_us), timeout(write_timeout_us));
            Ok(())
        })
    })
}

/// Returns a descriptor for poll and epoll in *fd. After a function has returned FARCALL_WOULD_BLOCK, the descriptor
/// is readable when reading or writing may continue. The options of the stream must have `nonblocking`. The descriptor
/// belongs to the stream: the program must not close it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_fd(stream: *mut farcall_stream, fd: *mut c_int) -> c_int {
    returned(|| {
        // SAFETY: farcall(3), "Pointers": `stream` is an open stream, and `*fd` is writable, until this function
        // returns.
        let (stream, into) = unsafe { (object(stream, "stream")?, Out::new(fd, "fd")?) };
        into.set(stream.0.with(|stream| Ok(stream.pollable_fd()?))?);
        Ok(())
    })
}

/// Returns whether a read and a write could proceed without waiting: *readable and *writable are set to 1 or 0.
///
/// A program that waits for both directions with one descriptor calls this function after each FARCALL_WOULD_BLOCK. A
/// write that found no space may have consumed the event for which the read waits, and the descriptor does not report
/// that event again. The same applies to a read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_ready(
    stream: *mut farcall_stream,
    readable: *mut c_int,
    writable: *mut c_int,
) -> c_int {
    returned(|| {
        // SAFETY: farcall(3), "Pointers": `stream` is an open stream, and `*readable` and `*writable` are writable,
        // until this function returns.
        let (stream, read, write) = unsafe {
            (object(stream, "stream")?, Out::new(readable, "readable")?, Out::new(writable, "writable")?)
        };
        let (can_read, can_write) = stream.0.with(|stream| {
            Ok(stream.operate(None, |stream| Ok((stream.is_readable(), stream.is_writable())))?)
        })?;
        read.set(can_read.into());
        write.set(can_write.into());
        Ok(())
    })
}

/// Writes the address of the peer, as text with a zero byte. A buffer of 64 bytes is sufficient.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_peer_address(
    stream: *const farcall_stream,
    address: *mut c_char,
    address_room_bytes: usize,
) -> c_int {
    returned(|| {
        // SAFETY: farcall(3), "Pointers": `stream` is an open stream until this function returns.
        let at = unsafe { object(stream, "stream")? }.0.with(|stream| Ok(stream.peer_address()))?;
        // SAFETY: farcall(3), "Pointers": the `address_room_bytes` bytes from `address` are writable until this
        // function returns.
        unsafe { write_text(&at.to_string(), address, address_room_bytes, "address") }
    })
}

/// Writes the path that carries the bytes, as text with a zero byte: "verbs", one-sided WRITEs through shared memory
/// or an RNIC, or "tcp", between hosts that no RNIC connects. A buffer of 8 bytes is sufficient.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_path(
    stream: *const farcall_stream,
    path: *mut c_char,
    path_room_bytes: usize,
) -> c_int {
    returned(|| {
        // SAFETY: farcall(3), "Pointers": `stream` is an open stream until this function returns.
        let name = unsafe { object(stream, "stream")? }.0.with(|stream| Ok(stream.path().name()))?;
        // SAFETY: farcall(3), "Pointers": the `path_room_bytes` bytes from `path` are writable until this function
        // returns.
        unsafe { write_text(name, path, path_room_bytes, "path") }
    })
}

/// Ends the outgoing direction: the peer reads the bytes in flight, then the end of the stream. This end can still
/// read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_shutdown(stream: *mut farcall_stream) -> c_int {
    returned(|| {
        // SAFETY: farcall(3), "Pointers": `stream` is an open stream until this function returns.
        unsafe { object(stream, "stream")? }.0.with(|stream| Ok(stream.finish()?))
    })
}

/// Closes a stream: ends the outgoing direction and waits until the written bytes have arrived, at most `timeout_us`
/// microseconds. After FARCALL_TIMED_OUT and FARCALL_RESET, bytes that had not arrived are lost.
///
/// The stream is freed in every case. No other function may be running with it, or be called with it later. A null
/// pointer is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_close(stream: *mut farcall_stream, timeout_us: u64) -> c_int {
    returned(|| {
        // SAFETY: farcall(3), "Pointers": `stream` is null or a stream of farcall_stream_connect or
        // farcall_listener_accept that is closed only once, here, and no other thread uses it.
        match unsafe { taken_back(stream)? } {
            Some(stream) => Ok(stream.0.into_inner()?.close(Duration::from_micros(timeout_us))?),
            None => Ok(()),
        }
    })
}

/// Resets a stream and frees it: the peer reads the bytes that had arrived, then gets FARCALL_RESET. No other function
/// may be running with it, or be called with it later. A null pointer is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_reset(stream: *mut farcall_stream) {
    returned(|| {
        // SAFETY: farcall(3), "Pointers": `stream` is null or a stream of farcall_stream_connect or
        // farcall_listener_accept that is reset only once, here, and no other thread uses it.
        if let Some(stream) = unsafe { taken_back(stream)? } {
            stream.0.into_inner()?.reset();
        }
        Ok(())
    });
}
