//! Listening sockets: TCP, and Unix sockets with management of their file.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use farcall_drive::{BACKLOG, deepen_backlog};
use mio::event::Source;
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, getsockname, listen,
    socket_with,
};
use thiserror::Error;

/// Reasons for which listening on a socket fails.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The TCP address cannot be bound, or the Unix socket cannot be created.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address or the path.
        address: String,
        /// Error of the system.
        source: io::Error,
    },
    /// A running server accepts connections on that path.
    #[error("{} is in use by a running server: stop it or choose another path", path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// A file of another type exists at that path, and is not removed.
    #[error("{} exists and is no socket: remove it or choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
}

/// A listening socket that accepts without blocking: TCP, or a Unix stream socket. The system calls are the same for
/// both, so one type serves for both.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    is_tcp: bool,
    /// File of a Unix socket that was created here.
    _file: Option<SocketFile>,
}

/// The file of a Unix socket; it is removed on drop.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode of the file: only this file is removed.
    identity: (u64, u64),
}

impl Listener {
    /// Listens on a TCP address; port 0 lets the system choose. Nagle's algorithm is off on every connection.
    ///
    /// # Errors
    /// [`ListenError::Bind`].
    pub fn tcp(address: SocketAddr) -> Result<Self, ListenError> {
        let socket = TcpListener::bind(address).map_err(bind_failed(address))?;
        deepen_backlog(&socket).map_err(bind_failed(address))?;
        Ok(Self { socket, is_tcp: true, _file: None })
    }

    /// Listens on a Unix socket at `path` that only this user can use (mode 0600). A file left by a server that has
    /// exited is replaced.
    ///
    /// # Errors
    /// [`ListenError`]; the socket of a running server and other files are not changed.
    pub fn unix(path: &Path) -> Result<Self, ListenError> {
        let failed = bind_failed(path.display());
        // Two servers that start at the same time must not both find the path stale. The lock on the directory
        // prevents this.
        let _lock = lock_directory(path).map_err(&failed)?;
        remove_stale(path)?;
        let socket = bind_private(path).map_err(|error| failed(error.into()))?;
        let metadata = fs::symlink_metadata(path).map_err(&failed)?;
        let identity = (metadata.dev(), metadata.ino());
        Ok(Self {
            socket: socket.into(),
            is_tcp: false,
            _file: Some(SocketFile { path: path.to_owned(), identity }),
        })
    }

    /// Adopts a TCP or Unix socket that already listens; its file, if it has one, is not removed.
    ///
    /// # Errors
    /// [`ListenError::Bind`] if it is not such a socket.
    pub fn inherited(socket: OwnedFd) -> Result<Self, ListenError> {
        let failed = bind_failed("an inherited socket");
        let address = getsockname(&socket).map_err(|error| failed(error.into()))?;
        let is_tcp = [AddressFamily::INET, AddressFamily::INET6].contains(&address.address_family());
        if !is_tcp && address.address_family() != AddressFamily::UNIX {
            return Err(failed(io::Error::other("it is neither of TCP nor a Unix socket")));
        }
        let socket = std::net::TcpListener::from(socket);
        socket.set_nonblocking(true).map_err(&failed)?;
        Ok(Self { socket: TcpListener::from_std(socket), is_tcp, _file: None })
    }

    /// Returns the address of a TCP listener.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    /// Returns the path of a Unix socket.
    pub fn unix_path(&self) -> Option<PathBuf> {
        let address = SocketAddrUnix::try_from(getsockname(&self.socket).ok()?).ok()?;
        address.path().map(|path| OsStr::from_bytes(path.to_bytes()).into())
    }

    /// Accepts the next connection. An error also indicates that none is waiting (`WouldBlock`).
    pub(super) fn accept(&self) -> io::Result<TcpStream> {
        let stream =
            TcpStream::from(accept_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?);
        if self.is_tcp {
            stream.set_nodelay(true)?;
        }
        Ok(stream)
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.socket.register(registry, token, Interest::READABLE)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let still_ours =
            fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity);
        if still_ours {
            // A failure here is ignored; the next server replaces the stale file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn bind_failed(address: impl Display) -> impl Fn(io::Error) -> ListenError {
    move |source| ListenError::Bind { address: address.to_string(), source }
}

fn lock_directory(path: &Path) -> io::Result<OwnedFd> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let fd =
        rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    flock(&fd, FlockOperation::LockExclusive)?;
    Ok(fd)
}

fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let failed = bind_failed(path.display());
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

/// Binds with mode 0600 from the start: the file receives the mode of the socket.
fn bind_private(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(socket.as_fd(), &SocketAddrUnix::new(path)?)?;
    listen(socket.as_fd(), BACKLOG)?;
    Ok(socket)
}
