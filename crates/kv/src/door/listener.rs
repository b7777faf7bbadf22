//! Listening sockets: TCP, and Unix sockets whose file behaves.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::{Interest, Registry, Token};
use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use thiserror::Error;

/// Why a socket cannot be listened on.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The TCP address cannot be bound.
    #[error("listening on {address} failed: {source}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The Unix socket cannot be made.
    #[error("listening on {} failed: {source}", path.display())]
    Unix {
        /// The path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A server answers on that path.
    #[error("{} is in use by a running server: stop it or choose another path", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Something else lies there, and it is not removed.
    #[error("{} exists and is no socket: remove it or choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
}

/// A listening socket that accepts without blocking.
#[derive(Debug)]
pub enum Listener {
    /// TCP, with Nagle's algorithm off on every connection.
    Tcp(TcpListener),
    /// A Unix stream socket; its file is removed on drop.
    Unix(UnixSocketFile),
}

/// A bound Unix socket and the file that names it.
#[derive(Debug)]
pub struct UnixSocketFile {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file: only this very file is removed.
    identity: (u64, u64),
}

/// Connections the kernel holds before they are accepted.
const BACKLOG: i32 = 1024;

impl Listener {
    /// Listens on a TCP address; port 0 lets the system choose.
    ///
    /// # Errors
    /// [`ListenError::Tcp`].
    pub fn tcp(address: SocketAddr) -> Result<Self, ListenError> {
        TcpListener::bind(address).map(Listener::Tcp).map_err(|source| ListenError::Tcp { address, source })
    }

    /// Listens on a Unix socket at `path`, usable by this user alone (mode 0600). A file left by a dead server is
    /// replaced.
    ///
    /// # Errors
    /// [`ListenError`]; a live server's socket and foreign files stay untouched.
    pub fn unix(path: &Path) -> Result<Self, ListenError> {
        let failed = |source| ListenError::Unix { path: path.to_owned(), source };
        // Two servers that start at once must not both find the path stale: the directory is the lock.
        let _lock = lock_directory(path).map_err(failed)?;
        remove_stale(path)?;
        let socket = bind_private(path).map_err(|error| failed(error.into()))?;
        let metadata = fs::symlink_metadata(path).map_err(failed)?;
        let identity = (metadata.dev(), metadata.ino());
        Ok(Listener::Unix(UnixSocketFile {
            listener: UnixListener::from(socket),
            path: path.to_owned(),
            identity,
        }))
    }

    /// Where a TCP listener listens.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(_) => None,
        }
    }

    /// The next connection, or [`io::ErrorKind::WouldBlock`].
    pub(super) fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Listener::Unix(socket) => Ok(Stream::Unix(socket.listener.accept()?.0)),
        }
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        match self {
            Listener::Tcp(listener) => listener.register(registry, token, Interest::READABLE),
            Listener::Unix(socket) => socket.listener.register(registry, token, Interest::READABLE),
        }
    }
}

impl Drop for UnixSocketFile {
    fn drop(&mut self) {
        let still_ours =
            fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if still_ours {
            // Nothing can be done about a failure here; the next server replaces the stale file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn lock_directory(path: &Path) -> io::Result<OwnedFd> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let fd =
        rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    flock(&fd, FlockOperation::LockExclusive)?;
    Ok(fd)
}

fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let failed = |source| ListenError::Unix { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ListenError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(ListenError::InUse { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Binds with mode 0600 from the first moment: the mode of the socket itself is what the file gets.
fn bind_private(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(socket.as_fd(), &SocketAddrUnix::new(path)?)?;
    listen(socket.as_fd(), BACKLOG)?;
    Ok(socket)
}

/// A connection of either kind.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Registers for both directions once: edges, so that no further call is needed per wake-up.
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            Stream::Tcp(stream) => stream.register(registry, token, interest),
            Stream::Unix(stream) => stream.register(registry, token, interest),
        }
    }
}

impl io::Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
