//! Clients of remote calls.

use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

use ::farcall_rpc::{CallOptions, Client};
use farcall::binding::{Exclusive, Failure};

use crate::argument::{Out, bytes, object, text};
use crate::boundary::{made, returned, taken_back};
use crate::options::{self, farcall_options};

/// A client of remote calls: a connection to one server thread. One thread at a time: another one gets FARCALL_BUSY.
pub struct farcall_rpc(Exclusive<Ready>);

struct Ready {
    client: Client,
    call_timeout: Option<Duration>,
    reply: Vec<u8>,
}

/// Connects to a server of remote calls at `address`, "host:port".
///
/// *rpc is the program's until farcall_rpc_close; null after a failure. `options` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_rpc_connect(
    address: *const c_char,
    options: *const farcall_options,
    rpc: *mut *mut farcall_rpc,
) -> c_int {
    // SAFETY: the program's promises: pointers lead to what their types say, or are null.
    unsafe {
        made(rpc, || {
            let options = options::read(options)?;
            let client = options.connect_client(text(address, "address")?)?;
            let ready = Ready { client, call_timeout: options.call_timeout, reply: Vec::new() };
            Ok(farcall_rpc(Exclusive::new(ready)))
        })
    }
}

/// Ends a client. Nobody may be inside of a function with it. Null is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_rpc_close(rpc: *mut farcall_rpc) {
    // SAFETY: the program's promise.
    returned(|| unsafe { taken_back(rpc) }.map(drop));
}

/// Calls a method and waits for the result, `timeout_us` microseconds at most; 0: as long as the client's options say.
///
/// The result is lent until the next function with this client. farcall_error_executed tells of any failure whether the
/// call was executed; FARCALL_APPLICATION is a refusal of the handler, with its number in
/// farcall_error_application_code and its text in farcall_error_message.
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
        // SAFETY: the program's promises.
        let (rpc, request) = unsafe { (object(rpc, "rpc")?, bytes(request, request_len_bytes, "request")?) };
        // SAFETY: the same.
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
        let timeout = match timeout_us {
            0 => self.call_timeout,
            timeout_us => Some(Duration::from_micros(timeout_us)),
        };
        let deadline = timeout.map(|timeout| self.client.now() + timeout);
        let options = CallOptions { deadline, trace_id: 0 };
        self.reply.clear();
        Ok(self.client.call_with(method, request, &mut self.reply, options)?)
    }
}
