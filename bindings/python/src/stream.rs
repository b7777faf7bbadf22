//! Byte streams.

use std::io::{self, Read, Write};
use std::time::Duration;

use farcall::binding::{Failure, Options as Plain};
use farcall_stream::{StreamError, StreamListener, StreamSocket};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::buffer::Room;
use crate::error::raised;
use crate::held::Held;
use crate::options::{Options, duration, plain};

/// A byte stream, which carries reliable, ordered bytes in both directions.
#[pyclass(frozen, module = "farcall")]
pub(crate) struct Stream(Held<Socket>);

/// A socket and the timeouts of its reads and writes.
struct Socket {
    socket: StreamSocket,
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
}

/// Default timeout of closing in seconds.
const CLOSE_SECONDS: f64 = 10.0;

impl Stream {
    fn of(socket: StreamSocket) -> Self {
        Self(Held::new(Socket { socket, read_timeout: None, write_timeout: None }))
    }

    /// Calls `wait` without the GIL until the socket is ready, then `act`, which does not wait, with the GIL. Repeats
    /// both if the socket is not ready any more.
    fn when<R>(
        &self,
        py: Python<'_>,
        mut wait: impl FnMut(&mut Socket) -> io::Result<()> + Send,
        mut act: impl FnMut(&mut StreamSocket) -> io::Result<R>,
    ) -> PyResult<R> {
        loop {
            self.0.wait(py, |socket| Ok(wait(socket)?))?;
            let done = self.0.with(|held| {
                held.socket.set_timeouts(Some(Duration::ZERO), Some(Duration::ZERO));
                match act(&mut held.socket) {
                    // Another thread has used the socket in between.
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
                    done => Ok(Some(done?)),
                }
            });
            if let Some(done) = done.map_err(|failure| raised(py, failure))? {
                return Ok(done);
            }
        }
    }

    fn read_with<R>(
        &self,
        py: Python<'_>,
        act: impl FnMut(&mut StreamSocket) -> io::Result<R>,
    ) -> PyResult<R> {
        let wait = |held: &mut Socket| {
            held.socket.operate(held.read_timeout, |stream| match stream.is_readable() {
                true => Ok(()),
                false => Err(StreamError::WouldBlock),
            })
        };
        self.when(py, wait, act)
    }
}

#[pymethods]
impl Stream {
    #[new]
    #[pyo3(signature = (address, options=None))]
    fn new(py: Python<'_>, address: &str, options: Option<&Bound<'_, Options>>) -> PyResult<Self> {
        let options = plain(options);
        let connected = py.detach(|| options.connect_stream(address));
        Ok(Self::of(connected.map_err(|failure| raised(py, failure))?))
    }

    /// Waits for bytes and returns at most `bytes_max` of them; b"" at the end of the stream.
    fn read<'py>(&self, py: Python<'py>, bytes_max: usize) -> PyResult<Bound<'py, PyBytes>> {
        let most = bytes_max.min(READ_MAX_BYTES);
        let bytes = self.0.wait(py, |held| {
            held.socket.set_timeouts(held.read_timeout, held.write_timeout);
            let mut bytes = vec![0; most];
            let len_bytes = if most == 0 { 0 } else { held.socket.read(&mut bytes)? };
            bytes.truncate(len_bytes);
            Ok(bytes)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Waits for bytes and reads them into a buffer. Returns their number; 0 at the end of the stream.
    fn readinto(&self, py: Python<'_>, into: &Bound<'_, PyAny>) -> PyResult<usize> {
        let room = Room::of(into)?;
        if room.write(|bytes| bytes.is_empty())? {
            return Ok(0);
        }
        self.read_with(py, |socket| room.write(|bytes| socket.read(bytes)).map_err(io::Error::other)?)
    }

    /// Waits for space and writes as many bytes as there is space for. Returns their number.
    fn write(&self, py: Python<'_>, from: &Bound<'_, PyAny>) -> PyResult<usize> {
        let from = Room::of(from)?;
        if from.read(<[u8]>::is_empty) {
            return Ok(0);
        }
        let wait = |held: &mut Socket| {
            held.socket.operate(held.write_timeout, |stream| match stream.is_writable() {
                true => Ok(()),
                false => Err(StreamError::WouldBlock),
            })
        };
        self.when(py, wait, |socket| from.read(|bytes| socket.write(bytes)))
    }

    /// Writes all bytes.
    fn write_all(&self, py: Python<'_>, from: &Bound<'_, PyAny>) -> PyResult<()> {
        let from = Room::of(from)?;
        let mut written = 0;
        while written < from.read(<[u8]>::len) {
            let wait = |held: &mut Socket| {
                held.socket.operate(held.write_timeout, |stream| match stream.is_writable() {
                    true => Ok(()),
                    false => Err(StreamError::WouldBlock),
                })
            };
            written += self.when(py, wait, |socket| from.read(|bytes| socket.write(&bytes[written..])))?;
        }
        Ok(())
    }

    /// Sets the timeouts of reading and writing in seconds; None: no timeout.
    #[pyo3(signature = (read=None, write=None))]
    fn set_timeouts(&self, py: Python<'_>, read: Option<f64>, write: Option<f64>) -> PyResult<()> {
        let (read_timeout, write_timeout) = (duration(py, read)?, duration(py, write)?);
        let set = self.0.with(|held| {
            (held.read_timeout, held.write_timeout) = (read_timeout, write_timeout);
            Ok(())
        });
        set.map_err(|failure| raised(py, failure))
    }

    /// Returns a descriptor that is readable when a call that would have blocked may continue.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let fd = self.0.with(|held| Ok(held.socket.pollable_fd()?));
        fd.map_err(|failure| raised(py, failure))
    }

    /// Returns whether a read and a write could proceed without waiting. A call that would have blocked may have
    /// consumed an event, which the descriptor does not report again.
    fn ready(&self, py: Python<'_>) -> PyResult<(bool, bool)> {
        let ready = self.0.with(|held| {
            Ok(held.socket.operate(None, |stream| Ok((stream.is_readable(), stream.is_writable())))?)
        });
        ready.map_err(|failure| raised(py, failure))
    }

    /// Address of the peer.
    #[getter]
    fn peer_address(&self, py: Python<'_>) -> PyResult<String> {
        let address = self.0.with(|held| Ok(held.socket.peer_address().to_string()));
        address.map_err(|failure| raised(py, failure))
    }

    /// Path that carries the bytes: "verbs", one-sided WRITEs through shared memory or an RNIC, or "tcp".
    #[getter]
    fn path(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.0.with(|held| Ok(held.socket.path().name())).map_err(|failure| raised(py, failure))
    }

    /// Ends the outgoing direction. This end can still read.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        self.0.wait(py, |held| Ok(held.socket.finish()?))
    }

    /// Closes the stream: ends the outgoing direction and waits, at most `timeout` seconds, until the written bytes
    /// have arrived.
    #[pyo3(signature = (timeout=10.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = duration(py, Some(timeout))?.unwrap_or_default();
        self.0.close(py, |held| Ok(held.socket.close(timeout)?))
    }

    /// Resets the stream: the peer reads the bytes that had arrived, then gets Code.RESET.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py, |held| {
            held.socket.reset();
            Ok(())
        })
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py, CLOSE_SECONDS)
    }
}

/// Maximum number of bytes of one `read`. Its buffer is allocated in advance, and most of a longer one would be
/// released unused.
const READ_MAX_BYTES: usize = 16 << 20;

/// A listener, which accepts byte streams.
#[pyclass(frozen, module = "farcall")]
pub(crate) struct Listener {
    listener: Held<(StreamListener, Plain)>,
    /// Address at which the listener listens.
    #[pyo3(get)]
    address: String,
}

#[pymethods]
impl Listener {
    #[new]
    #[pyo3(signature = (address, options=None))]
    fn new(py: Python<'_>, address: &str, options: Option<&Bound<'_, Options>>) -> PyResult<Self> {
        let options = plain(options);
        let bound = py.detach(|| {
            let listener = options.listen(address)?;
            let address = listener.address()?;
            Ok::<_, Failure>((listener, address))
        });
        let (listener, address) = bound.map_err(|failure| raised(py, failure))?;
        Ok(Self { listener: Held::new((listener, options)), address: address.to_string() })
    }

    /// Waits for a stream and accepts it.
    fn accept(&self, py: Python<'_>) -> PyResult<Stream> {
        self.listener.wait(py, |(listener, options)| options.accept(listener)).map(Stream::of)
    }

    /// Returns a descriptor that is readable when an accept that would have blocked may continue.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let fd = self.listener.with(|(listener, _)| Ok(listener.pollable_fd()?));
        fd.map_err(|failure| raised(py, failure))
    }

    /// Closes the listener. Accepted streams remain open.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.listener.close(py, |_| Ok(()))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }
}
