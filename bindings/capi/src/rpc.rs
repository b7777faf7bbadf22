//! Clients of remote calls.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use ::farcall_rpc::{CallOptions, Client};
use farcall::binding::{Exclusive, Failure};

use crate::argument::{Out, bytes, object, text};
use crate::boundary::{made, returned, taken_back};
use crate::options::{self, farcall_options};

/// A client of remote calls, with a connection to one server thread. Used by one thread at a time: a function that
/// finds it in use fails with FARCALL_BUSY.
pub struct farcall_rpc(Exclusive<Ready>);

struct Ready {
    client: Client,
    reply: Vec<u8>,
}

/// Connects to a server of remote calls at `address`, "host:port".
///
/// *rpc belongs to the program until farcall_rpc_close. It is null after a failure. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_rpc_connect(
    address: *const c_char,
    options: *const farcall_options,
    rpc: *mut *mut farcall_rpc,
) -> c_int {
    // SAFETY: farcall(3), "Pointers": `address`, `options` and its texts are readable and not written, and `*rpc` is
    // writable, until this function returns. `made`, `options::read` and `text` require no more.
    unsafe {
        made(rpc, || {
            let options = options::read(options)?;
            let client = options.connect_client(text(address, "address")?)?;
            Ok(farcall_rpc(Exclusive::new(Ready { client, reply: Vec::new() })))
        })
    }
}

/// Closes a client and frees it. No other function may be running with it, or be called with it later. A null pointer
/// is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_rpc_close(rpc: *mut farcall_rpc) {
    // SAFETY: farcall(3), "Pointers": `rpc` is null or a client of farcall_rpc_connect that is closed only once, here,
    // and no other thread uses it.
    returned(|| unsafe { taken_back(rpc) }.map(drop));
}

/// Calls a method and waits for the result, at most `timeout_us` microseconds; 0: the timeout of the client's options.
///
/// *reply and *reply_len_bytes are the result, which is valid until the next function call with this client. After a
/// failure, farcall_error_executed returns whether the call was executed. FARCALL_APPLICATION is a refusal by the
/// handler: farcall_error_application_code returns its code, and farcall_error_message includes its text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_rpc_call(
    rpc: *mut farcall_rpc,
    method: u16,
    request: *const c_void,
    request_len_bytes: usize,
    timeout_us: u64,
    reply: *mut *const c_void,
    reply_len_bytes: *mut usize,
) -> c_int {
    returned(|| {
        // SAFETY: farcall(3), "Pointers": `rpc` is an open client, and the bytes of the request are readable and not
        // written, until this function returns.
        let (rpc, request) = unsafe { (object(rpc, "rpc")?, bytes(request, request_len_bytes, "request")?) };
        // SAFETY: farcall(3), "Pointers": `*reply` and `*reply_len_bytes` are writable until this function returns.
        let (start, len) =
            unsafe { (Out::new(reply, "reply")?, Out::new(reply_len_bytes, "reply_len_bytes")?) };
        rpc.0.with(|ready| {
            ready.call(method, request, timeout_us)?;
            start.set(ready.reply.as_ptr().cast());
            len.set(ready.reply.len());
            Ok(())
        })
    })
}

impl Ready {
    fn call(&mut self, method: u16, request: &[u8], timeout_us: u64) -> Result<(), Failure> {
        let timeout = (timeout_us > 0).then(|| Duration::from_micros(timeout_us));
        let options = CallOptions::new().timeout(timeout);
        self.reply.clear();
        Ok(self.client.call_with(method, request, &mut self.reply, options)?)
    }
}
