//! Byte streams.

use std::ffi::{c_char, c_int, c_void};
use std::io::{Read, Write};
use std::time::Duration;

use ::farcall_stream::{StreamListener, StreamSocket};
use farcall::binding::{Exclusive, Failure, Options};

use crate::argument::{Out, bytes, object, room, text, write_text};
use crate::boundary::{made, returned, taken_back};
use crate::options::{self, farcall_options};

/// Accepts byte streams. One thread at a time: another one gets FARCALL_BUSY.
pub struct farcall_listener(Exclusive<(StreamListener, Options)>);

/// A byte stream: reliable, ordered bytes in both directions. One thread at a time: another one gets FARCALL_BUSY.
pub struct farcall_stream(Exclusive<StreamSocket>);

/// Listens for streams at `address`, "host:port"; port 0 lets the system choose.
///
/// *listener is the program's until farcall_listener_close; null after a failure. `options` may be null; those with
/// `nonblocking` hold for the streams that it accepts, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_listen(
    address: *const c_char,
    options: *const farcall_options,
    listener: *mut *mut farcall_listener,
) -> c_int {
    // SAFETY: the program's promises: pointers lead to what their types say, or are null.
    unsafe {
        made(listener, || {
            let options = options::read(options)?;
            let listener = options.listen(text(address, "address")?)?;
            Ok(farcall_listener(Exclusive::new((listener, options))))
        })
    }
}

/// Where a listener listens, as text with a zero byte. 64 bytes are enough room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_listener_address(
    listener: *const farcall_listener,
    address: *mut c_char,
    address_room_bytes: usize,
) -> c_int {
    returned(|| {
        // SAFETY: the program's promise.
        let at = unsafe { object(listener, "listener")? }.0.with(|(listener, _)| Ok(listener.address()?))?;
        // SAFETY: the same.
        unsafe { write_text(&at.to_string(), address, address_room_bytes, "address") }
    })
}

/// A descriptor for poll and epoll, which is readable when accepting may go on, after farcall_listener_accept answered
/// FARCALL_WOULD_BLOCK. It belongs to the listener.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_listener_fd(listener: *mut farcall_listener, fd: *mut c_int) -> c_int {
    returned(|| {
        // SAFETY: the program's promises.
        let (listener, into) = unsafe { (object(listener, "listener")?, Out::new(fd, "fd")?) };
        into.set(listener.0.with(|(listener, _)| Ok(listener.pollable_fd()?))?);
        Ok(())
    })
}

/// Waits for a stream, or answers FARCALL_WOULD_BLOCK if the options of the listener say so.
///
/// *stream is the program's until farcall_stream_close or farcall_stream_reset; null after a failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_listener_accept(
    listener: *mut farcall_listener,
    stream: *mut *mut farcall_stream,
) -> c_int {
    // SAFETY: the program's promises.
    unsafe {
        made(stream, || {
            let listener = object(listener, "listener")?;
            let accepted = listener.0.with(|(listener, options)| options.accept(listener))?;
            Ok(farcall_stream(Exclusive::new(accepted)))
        })
    }
}

/// Ends a listener. Streams that it accepted go on. Nobody may be inside of a function with it. Null is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_listener_close(listener: *mut farcall_listener) {
    // SAFETY: the program's promise.
    returned(|| unsafe { taken_back(listener) }.map(drop));
}

/// Connects to a listener at `address`, "host:port". This waits, also with options with `nonblocking`.
///
/// *stream is the program's until farcall_stream_close or farcall_stream_reset; null after a failure. `options` may be
/// null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_connect(
    address: *const c_char,
    options: *const farcall_options,
    stream: *mut *mut farcall_stream,
) -> c_int {
    // SAFETY: the program's promises.
    unsafe {
        made(stream, || {
            let stream = options::read(options)?.connect_stream(text(address, "address")?)?;
            Ok(farcall_stream(Exclusive::new(stream)))
        })
    }
}

/// Does something with a stream, and tells a length.
///
/// # Safety
/// As of [`object`] and [`Out::new`].
unsafe fn moved(
    stream: *mut farcall_stream,
    moved_bytes: *mut usize,
    action: impl FnOnce(&mut StreamSocket) -> Result<usize, Failure>,
) -> c_int {
    returned(|| {
        // SAFETY: passed on.
        let (stream, into) = unsafe { (object(stream, "stream")?, Out::new(moved_bytes, "the length")?) };
        into.set(0);
        into.set(stream.0.with(action)?);
        Ok(())
    })
}

/// Reads what is there, `room_bytes` at most; waits for a first byte. *read_bytes is 0 at the end of the peer's stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_read(
    stream: *mut farcall_stream,
    into: *mut c_void,
    room_bytes: usize,
    read_bytes: *mut usize,
) -> c_int {
    // SAFETY: the program's promises.
    unsafe {
        moved(stream, read_bytes, |stream| {
            let into = room(into, room_bytes, "into")?;
            // Nothing is read into no room: that is not the end.
            if into.is_empty() { Ok(0) } else { Ok(stream.read(into)?) }
        })
    }
}

/// Writes as much as there is room for; waits for room for a first byte. What is written arrives without further calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_write(
    stream: *mut farcall_stream,
    from: *const c_void,
    from_len_bytes: usize,
    written_bytes: *mut usize,
) -> c_int {
    // SAFETY: the program's promises.
    unsafe {
        moved(stream, written_bytes, |stream| {
            let from = bytes(from, from_len_bytes, "from")?;
            if from.is_empty() { Ok(0) } else { Ok(stream.write(from)?) }
        })
    }
}

/// How long a read and a write may wait, in microseconds; 0: for ever. FARCALL_TIMED_OUT after that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_set_timeouts(
    stream: *mut farcall_stream,
    read_timeout_us: u64,
    write_timeout_us: u64,
) -> c_int {
    returned(|| {
        let timeout = |us: u64| (us != 0).then(|| Duration::from_micros(us));
        // SAFETY: the program's promise.
        unsafe { object(stream, "stream")? }.0.with(|stream| {
            stream.set_timeouts(timeout(read_timeout_us), timeout(write_timeout_us));
            Ok(())
        })
    })
}

/// A descriptor for poll and epoll, which is readable when reading or writing may go on, after a function answered
/// FARCALL_WOULD_BLOCK. It belongs to the stream, which must have options with `nonblocking`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_fd(stream: *mut farcall_stream, fd: *mut c_int) -> c_int {
    returned(|| {
        // SAFETY: the program's promises.
        let (stream, into) = unsafe { (object(stream, "stream")?, Out::new(fd, "fd")?) };
        into.set(stream.0.with(|stream| Ok(stream.pollable_fd()?))?);
        Ok(())
    })
}

/// Whether a read and a write would go on now: *readable and *writable are 1 or 0.
///
/// A program that waits for both on one descriptor asks this after each FARCALL_WOULD_BLOCK: a write that found no room
/// may have taken in what the read waits for, of which the descriptor tells nothing any more; and the other way round.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_ready(
    stream: *mut farcall_stream,
    readable: *mut c_int,
    writable: *mut c_int,
) -> c_int {
    returned(|| {
        // SAFETY: the program's promises.
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

/// Where the other end is, as text with a zero byte. 64 bytes are enough room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_peer_address(
    stream: *const farcall_stream,
    address: *mut c_char,
    address_room_bytes: usize,
) -> c_int {
    returned(|| {
        // SAFETY: the program's promise.
        let at = unsafe { object(stream, "stream")? }.0.with(|stream| Ok(stream.peer_address()))?;
        // SAFETY: the same.
        unsafe { write_text(&at.to_string(), address, address_room_bytes, "address") }
    })
}

/// What carries the bytes, as text with a zero byte: "verbs", one-sided WRITEs through shared memory or an RNIC, or "tcp",
/// between hosts where no RNIC reaches. 8 bytes are enough room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_path(
    stream: *const farcall_stream,
    path: *mut c_char,
    path_room_bytes: usize,
) -> c_int {
    returned(|| {
        // SAFETY: the program's promise.
        let name = unsafe { object(stream, "stream")? }.0.with(|stream| Ok(stream.path().name()))?;
        // SAFETY: the same.
        unsafe { write_text(name, path, path_room_bytes, "path") }
    })
}

/// Ends what this end writes: the peer reads what is on its way, then the end. Reading goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_shutdown(stream: *mut farcall_stream) -> c_int {
    returned(|| {
        // SAFETY: the program's promise.
        unsafe { object(stream, "stream")? }.0.with(|stream| Ok(stream.finish()?))
    })
}

/// Ends a stream, and waits until what was written has arrived, `timeout_us` microseconds at most. FARCALL_TIMED_OUT or
/// FARCALL_RESET: what had not arrived is lost.
///
/// The stream is gone in any case. Nobody may be inside of a function with it. Null is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_close(stream: *mut farcall_stream, timeout_us: u64) -> c_int {
    returned(|| {
        // SAFETY: the program's promise.
        match unsafe { taken_back(stream)? } {
            Some(stream) => Ok(stream.0.into_inner()?.close(Duration::from_micros(timeout_us))?),
            None => Ok(()),
        }
    })
}

/// Gives a stream up: the peer reads what had arrived, then FARCALL_RESET. Nobody may be inside of a function with it.
/// Null is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_stream_reset(stream: *mut farcall_stream) {
    returned(|| {
        // SAFETY: the program's promise.
        if let Some(stream) = unsafe { taken_back(stream)? } {
            stream.0.into_inner()?.reset();
        }
        Ok(())
    });
}
