//! Servers of remote calls, whose handler is a function of the program.

use std::ffi::{c_char, c_int, c_void};

use farcall::binding::Failure;
use farcall_rpc::{Call, Handler, HandlerError, Reply, Server};

use crate::argument::{bytes, object, text, write_text};
use crate::boundary::{made, returned, taken_back};
use crate::options::{self, farcall_options};

/// A running server of remote calls.
pub struct farcall_server(Server);

/// A call, as its handler sees it: lent until the handler returns.
#[repr(C)]
pub struct farcall_call {
    /// The request: the library's memory, to be read only.
    pub request: *const c_void,
    /// Its length.
    pub request_len_bytes: usize,
    /// The call's number, unique in its session.
    pub call_id: u64,
    /// The connection it came over: a number that is unique while the connection lives.
    pub connection: u32,
    /// Which method.
    pub method: u16,
    /// 0.
    pub reserved: u16,
}

/// Where a handler writes the result of its call. Lent until the handler returns.
pub struct farcall_reply<'a, 'b> {
    result: &'a mut Reply<'b>,
    refusal: Option<HandlerError>,
}

/// Answers one call: appends to `reply`, or refuses. `context` is what farcall_server_start was given.
///
/// It runs in the server's threads: with several of them, in several at once. It must not wait for calls to its own
/// server, and no exception may leave it.
pub type farcall_handler =
    Option<unsafe extern "C" fn(context: *mut c_void, call: *const farcall_call, reply: *mut farcall_reply)>;

/// A program's function with what it is given.
#[derive(Clone, Copy)]
struct Service {
    handler: unsafe extern "C" fn(*mut c_void, *const farcall_call, *mut farcall_reply),
    context: *mut c_void,
}

// SAFETY: the program promises that its handler may run in the server's threads.
unsafe impl Send for Service {}
// SAFETY: the same: only copies are made of it.
unsafe impl Sync for Service {}

impl Handler for Service {
    fn handle(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<(), HandlerError> {
        let given = farcall_call {
            request: call.payload().as_ptr().cast(),
            request_len_bytes: call.payload().len(),
            call_id: call.call_id(),
            connection: call.connection(),
            method: call.method(),
            reserved: 0,
        };
        let mut written = farcall_reply { result: reply, refusal: None };
        // SAFETY: the program's function; both live until it returns.
        unsafe { (self.handler)(self.context, &given, std::ptr::from_mut(&mut written)) };
        written.refusal.map_or(Ok(()), Err)
    }
}

/// Starts a server of remote calls at `address`, "host:port"; port 0 lets the system choose.
///
/// *server is the program's until farcall_server_stop; null after a failure. `options` may be null. `context` must live
/// until then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_server_start(
    address: *const c_char,
    options: *const farcall_options,
    handler: farcall_handler,
    context: *mut c_void,
    server: *mut *mut farcall_server,
) -> c_int {
    // SAFETY: the program's promises: pointers lead to what their types say, or are null.
    unsafe {
        made(server, || {
            let handler = handler.ok_or_else(|| Failure::invalid("handler: a null pointer"))?;
            let service = Service { handler, context };
            let options = options::read(options)?;
            Ok(farcall_server(options.serve(text(address, "address")?, move || service)?))
        })
    }
}

/// Where a server listens, as text with a zero byte: "127.0.0.1:41234". 64 bytes are enough room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_server_address(
    server: *const farcall_server,
    address: *mut c_char,
    address_room_bytes: usize,
) -> c_int {
    returned(|| {
        // SAFETY: the program's promises.
        unsafe {
            let server = object(server, "server")?;
            write_text(&server.0.address().to_string(), address, address_room_bytes, "address")
        }
    })
}

/// Ends a server: no new connections; what came is answered, what comes is refused as not executed; then its threads end,
/// and this returns. Not to be called by a handler. Null is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_server_stop(server: *mut farcall_server) {
    returned(|| {
        // SAFETY: the program's promise.
        if let Some(server) = unsafe { taken_back(server)? } {
            server.0.drain();
            server.0.join();
        }
        Ok(())
    });
}

/// Appends bytes to the result of a call. They are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_reply_append(
    reply: *mut farcall_reply,
    result: *const c_void,
    result_len_bytes: usize,
) -> c_int {
    returned(|| {
        // SAFETY: the program's promises; one handler, in one thread, has the reply.
        let (_, result) = unsafe { (object(reply, "reply")?, bytes(result, result_len_bytes, "result")?) };
        // SAFETY: checked just now, and the same.
        unsafe { &mut *reply }.result.extend_from_slice(result);
        Ok(())
    })
}

/// Refuses a call: the caller gets FARCALL_APPLICATION with this number, of 15 bits, and this text, instead of a result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_reply_refuse(
    reply: *mut farcall_reply,
    application_code: u16,
    message: *const c_char,
) -> c_int {
    returned(|| {
        // SAFETY: the program's promises; one handler, in one thread, has the reply.
        let (_, message) = unsafe { (object(reply, "reply")?, text(message, "message")?) };
        if application_code >= 1 << 15 {
            return Err(Failure::invalid(format!("application_code: {application_code} is more than 32767")));
        }
        // SAFETY: checked just now, and the same.
        unsafe { &mut *reply }.refusal = Some(HandlerError::new(application_code, message));
        Ok(())
    })
}
