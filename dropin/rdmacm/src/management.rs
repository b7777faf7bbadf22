//! Queue pair 1 of Farcall's libibverbs, over which connection managers of other hosts are reached. Other or older
//! libraries do not provide it.

use std::ffi::c_int;
use std::net::Ipv6Addr;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use farcall_wire::cm::MESSAGE_BYTES;

use crate::errno::{Errno, refused};
use crate::verbs;

type Open = unsafe extern "C" fn(*mut u32) -> c_int;
type Claim = unsafe extern "C" fn() -> c_int;
type IsHeld = unsafe extern "C" fn() -> c_int;
type Send = unsafe extern "C" fn(*const [u8; 16], *const [u8; MESSAGE_BYTES]) -> c_int;
type Take = unsafe extern "C" fn(*mut [u8; 16], *mut [u8; 16], *mut [u8; MESSAGE_BYTES]) -> c_int;
type CountRefused = unsafe extern "C" fn();

struct Functions {
    open: Open,
    claim: Claim,
    is_held: IsHeld,
    send: Send,
    send_as_holder: Send,
    take: Take,
    count_refused: CountRefused,
}

fn functions() -> Option<&'static Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    FUNCTIONS
        .get_or_init(|| {
            let library = verbs::library().as_ref().ok()?;
            // SAFETY: only Farcall's libibverbs exports these names, always with these types.
            unsafe {
                Some(Functions {
                    open: *library.get(b"farcall_management_open\0").ok()?,
                    claim: *library.get(b"farcall_management_claim\0").ok()?,
                    is_held: *library.get(b"farcall_management_is_held\0").ok()?,
                    send: *library.get(b"farcall_management_send\0").ok()?,
                    send_as_holder: *library.get(b"farcall_management_send_as_holder\0").ok()?,
                    take: *library.get(b"farcall_management_take\0").ok()?,
                    count_refused: *library.get(b"farcall_management_count_refused\0").ok()?,
                })
            }
        })
        .as_ref()
}

/// A message of another host, as received and as forwarded between processes of this host.
pub struct RemoteMad {
    pub src: Ipv6Addr,
    pub dst: Ipv6Addr,
    pub bytes: [u8; MESSAGE_BYTES],
}

/// Length of a forwarded message in bytes: both addresses, then the message.
pub const REMOTE_MAD_BYTES: usize = 32 + MESSAGE_BYTES;

impl RemoteMad {
    pub fn encode(&self) -> Vec<u8> {
        [&self.src.octets()[..], &self.dst.octets(), &self.bytes].concat()
    }

    pub fn decode(bytes: &[u8; REMOTE_MAD_BYTES]) -> Self {
        let address = |at: usize| -> Ipv6Addr {
            <[u8; 16]>::try_from(&bytes[at..at + 16]).expect("sixteen bytes").into()
        };
        let message = bytes[32..].try_into().expect("what is behind the addresses");
        Self { src: address(0), dst: address(16), bytes: message }
    }
}

/// Queue pair 1.
pub struct Management {
    functions: &'static Functions,
    /// Number of this process among those that share the queue pair.
    pub slot: u32,
    /// Readable when a message has arrived.
    pub arrived: BorrowedFd<'static>,
}

impl Management {
    /// # Errors
    /// Returns the error of libibverbs; `EOPNOTSUPP` if it does not provide queue pair 1.
    pub fn open() -> Result<Self, Errno> {
        let none = || refused(libc::EOPNOTSUPP, format_args!("libibverbs offers no way to other hosts"));
        let functions = functions().ok_or_else(none)?;
        let mut slot = 0;
        // SAFETY: the function writes to `slot`, which outlives the call.
        let descriptor = unsafe { (functions.open)(&raw mut slot) };
        if descriptor < 0 {
            return Err(refused(-descriptor, format_args!("queue pair 1 cannot be opened")));
        }
        // SAFETY: libibverbs keeps the descriptor open until the process exits.
        let arrived = unsafe { BorrowedFd::borrow_raw(descriptor) };
        Ok(Self { functions, slot, arrived })
    }

    /// Claims the receive side of the queue pair, unless another process has it. Returns whether this process has it.
    pub fn claim(&self) -> bool {
        // SAFETY: the function has no arguments and no preconditions.
        unsafe { (self.functions.claim)() == 1 }
    }

    /// Sends a message, which may be lost. Returns whether there is a route.
    pub fn send(&self, dst: Ipv6Addr, bytes: &[u8; MESSAGE_BYTES]) -> bool {
        let dst = dst.octets();
        // SAFETY: both pointers are valid for the duration of the call.
        unsafe { (self.functions.send)(&raw const dst, bytes) == 0 }
    }

    /// Returns whether this process still has the receive side.
    pub fn is_held(&self) -> bool {
        // SAFETY: the function has no arguments and no preconditions.
        unsafe { (self.functions.is_held)() == 1 }
    }

    /// Like [`Management::send`], if this process still has the receive side. Returns whether the message was sent.
    pub fn send_as_holder(&self, dst: Ipv6Addr, bytes: &[u8; MESSAGE_BYTES]) -> bool {
        let dst = dst.octets();
        // SAFETY: both pointers are valid for the duration of the call.
        unsafe { (self.functions.send_as_holder)(&raw const dst, bytes) == 1 }
    }

    /// Counts a connection that was refused because of a limit.
    pub fn count_refused(&self) {
        // SAFETY: the function has no arguments and no preconditions.
        unsafe { (self.functions.count_refused)() }
    }

    /// Receives the next message.
    pub fn take(&self) -> Option<RemoteMad> {
        let (mut src, mut dst, mut bytes) = ([0; 16], [0; 16], [0; MESSAGE_BYTES]);
        // SAFETY: the three pointers are valid for the duration of the call.
        let taken = unsafe { (self.functions.take)(&raw mut src, &raw mut dst, &raw mut bytes) };
        (taken == 1).then(|| RemoteMad { src: src.into(), dst: dst.into(), bytes })
    }
}
