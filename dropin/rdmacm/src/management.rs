//! Queue pair 1, which libibverbs has: the way to connection managers of other hosts. With a library that is not ours,
//! or older, there is none.

use std::ffi::c_int;
use std::net::Ipv6Addr;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use farcall_wire::cm::MESSAGE_BYTES;

use crate::errno::{Errno, refused};
use crate::verbs;

type Open = unsafe extern "C" fn(*mut u32) -> c_int;
type Claim = unsafe extern "C" fn() -> c_int;
type Send = unsafe extern "C" fn(*const [u8; 16], *const [u8; MESSAGE_BYTES]) -> c_int;
type Take = unsafe extern "C" fn(*mut [u8; 16], *mut [u8; 16], *mut [u8; MESSAGE_BYTES]) -> c_int;
type CountRefused = unsafe extern "C" fn();

struct Functions {
    open: Open,
    claim: Claim,
    send: Send,
    take: Take,
    count_refused: CountRefused,
}

fn functions() -> Option<&'static Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    FUNCTIONS
        .get_or_init(|| {
            let library = verbs::library().as_ref().ok()?;
            // SAFETY: the names are ours alone, and always of these types.
            unsafe {
                Some(Functions {
                    open: *library.get(b"farcall_management_open\0").ok()?,
                    claim: *library.get(b"farcall_management_claim\0").ok()?,
                    send: *library.get(b"farcall_management_send\0").ok()?,
                    take: *library.get(b"farcall_management_take\0").ok()?,
                    count_refused: *library.get(b"farcall_management_count_refused\0").ok()?,
                })
            }
        })
        .as_ref()
}

/// A message of another host, as it came and as processes of this host hand it on.
pub struct Foreign {
    pub src: Ipv6Addr,
    pub dst: Ipv6Addr,
    pub bytes: [u8; MESSAGE_BYTES],
}

/// What a foreign message takes when it is handed on: both addresses, then the message.
pub const FOREIGN_BYTES: usize = 32 + MESSAGE_BYTES;

impl Foreign {
    pub fn encode(&self) -> Vec<u8> {
        [&self.src.octets()[..], &self.dst.octets(), &self.bytes].concat()
    }

    pub fn decode(bytes: &[u8; FOREIGN_BYTES]) -> Self {
        let address = |at: usize| -> Ipv6Addr {
            <[u8; 16]>::try_from(&bytes[at..at + 16]).expect("sixteen bytes").into()
        };
        let message = bytes[32..].try_into().expect("what is behind the addresses");
        Self { src: address(0), dst: address(16), bytes: message }
    }
}

/// Queue pair 1, opened.
pub struct Management {
    functions: &'static Functions,
    /// Which of the processes that share it this one is.
    pub slot: u32,
    /// Readable when a message came.
    pub arrived: BorrowedFd<'static>,
}

impl Management {
    /// # Errors
    /// What libibverbs says; `EOPNOTSUPP` if it has no such thing.
    pub fn open() -> Result<Self, Errno> {
        let none = || refused(libc::EOPNOTSUPP, format_args!("libibverbs offers no way to other hosts"));
        let functions = functions().ok_or_else(none)?;
        let mut slot = 0;
        // SAFETY: the function gets what it was made for.
        let descriptor = unsafe { (functions.open)(&raw mut slot) };
        if descriptor < 0 {
            return Err(refused(-descriptor, format_args!("queue pair 1 cannot be opened")));
        }
        // SAFETY: libibverbs keeps it open as long as the process lives.
        let arrived = unsafe { BorrowedFd::borrow_raw(descriptor) };
        Ok(Self { functions, slot, arrived })
    }

    /// Takes what comes for the queue pair, unless another process does. Whether it is ours.
    pub fn claim(&self) -> bool {
        // SAFETY: it has no arguments.
        unsafe { (self.functions.claim)() == 1 }
    }

    /// Sends a message, which may be lost; whether there is a way.
    pub fn send(&self, dst: Ipv6Addr, bytes: &[u8; MESSAGE_BYTES]) -> bool {
        let dst = dst.octets();
        // SAFETY: both live through the call.
        unsafe { (self.functions.send)(&raw const dst, bytes) == 0 }
    }

    /// Counts a connection that was refused as one too many.
    pub fn count_refused(&self) {
        // SAFETY: it has no arguments.
        unsafe { (self.functions.count_refused)() }
    }

    /// The next message that came.
    pub fn take(&self) -> Option<Foreign> {
        let (mut src, mut dst, mut bytes) = ([0; 16], [0; 16], [0; MESSAGE_BYTES]);
        // SAFETY: all live through the call.
        let taken = unsafe { (self.functions.take)(&raw mut src, &raw mut dst, &raw mut bytes) };
        (taken == 1).then(|| Foreign { src: src.into(), dst: dst.into(), bytes })
    }
}
