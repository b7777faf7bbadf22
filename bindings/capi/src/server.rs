//! Servers of remote calls. Their handlers are functions of the program.

use std::ffi::{c_char, c_int, c_void};

use farcall::binding::Failure;
use farcall_rpc::{Call, Handler, HandlerError, Reply, Server};

use crate::argument::{bytes, object, text, write_text};
use crate::boundary::{made, returned, taken_back};
use crate::options::{self, farcall_options};

/// A running server of remote calls.
pub struct farcall_server(Server);

/// A call, as passed to its handler. It is valid until the handler returns.
#[repr(C)]
pub struct farcall_call {
    /// The request, which must not be written. Valid until the handler returns.
    pub request: *const c_void,
    /// Length of the request in bytes.
    pub request_len_bytes: usize,
    /// Number of the call, unique in its session.
    pub call_id: u64,
    /// Number of the connection over which the call arrived, unique while the connection exists.
    pub connection: u32,
    /// Number of the method.
    pub method: u16,
    /// Reserved; 0.
    pub reserved: u16,
}

/// The reply to a call, which the handler fills. It is valid until the handler returns.
pub struct farcall_reply<'a, 'b> {
    result: &'a mut Reply<'b>,
    refusal: Option<HandlerError>,
}

/// Handles one call: appends the result to `reply`, or refuses the call. `context` is the pointer that was passed to
/// farcall_server_start.
///
/// The handler runs in the threads of the server; if there are several, it runs concurrently. It must not wait for
/// calls to its own server, and no exception may leave it.
pub type farcall_handler =
    Option<unsafe extern "C" fn(context: *mut c_void, call: *const farcall_call, reply: *mut farcall_reply)>;

/// Handler function of a program and the context that is passed to it.
#[derive(Clone, Copy)]
struct Service {
    handler: unsafe extern "C" fn(*mut c_void, *const farcall_call, *mut farcall_reply),
    context: *mut c_void,
}

// SAFETY: farcall.h (farcall_handler) states that the handler runs in the threads of the server, with the context of
// farcall_server_start, which is valid until farcall_server_stop returns. Hence both may be used in these threads.
unsafe impl Send for Service {}
// SAFETY: a shared `Service` is only copied. The copies run in the threads of the server concurrently, which farcall.h
// (farcall_handler) states.
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
        // SAFETY: `handler` is a function of the type farcall_handler, which no exception leaves, called with the
        // context that belongs to it. `given`, its request and `written` outlive the call, and farcall.h lets the
        // handler use them no longer.
        unsafe { (self.handler)(self.context, &given, std::ptr::from_mut(&mut written)) };
        written.refusal.map_or(Ok(()), Err)
    }
}

/// Starts a server of remote calls at `address`, "host:port". For port 0 the system chooses a port.
///
/// *server belongs to the program until farcall_server_stop. It is null after a failure. `options` may be null.
/// `context` is passed to `handler`, and must be valid until farcall_server_stop returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_server_start(
    address: *const c_char,
    options: *const farcall_options,
    handler: farcall_handler,
    context: *mut c_void,
    server: *mut *mut farcall_server,
) -> c_int {
    // SAFETY: farcall(3), "Pointers": `address`, `options` and its texts are readable and not written, and `*server`
    // is writable, until this function returns. `made`, `options::read` and `text` require no more.
    unsafe {
        made(server, || {
            let handler = handler.ok_or_else(|| Failure::invalid("handler: a null pointer"))?;
            let service = Service { handler, context };
            let options = options::read(options)?;
            Ok(farcall_server(options.serve(text(address, "address")?, move || service)?))
        })
    }
}

/// Writes the address at which a server listens, as text with a zero byte: "127.0.0.1:41234". A buffer of 64 bytes is
/// sufficient.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_server_address(
    server: *const farcall_server,
    address: *mut c_char,
    address_room_bytes: usize,
) -> c_int {
    returned(|| {
        // SAFETY: farcall(3), "Pointers": `server` is a running server, and the `address_room_bytes` bytes from
        // `address` are writable, until this function returns.
        unsafe {
            let server = object(server, "server")?;
            write_text(&server.0.address().to_string(), address, address_room_bytes, "address")
        }
    })
}

/// Stops a server and frees it. The server accepts no new connections, finishes the calls received so far, and refuses
/// later ones as not executed. Returns after the threads of the server have ended; hence a handler must not call it.
///
/// No other function may be running with it, or be called with it later. A null pointer is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_server_stop(server: *mut farcall_server) {
    returned(|| {
        // SAFETY: farcall(3), "Pointers": `server` is null or a server of farcall_server_start that is stopped only
        // once, here, and no other thread uses it.
        if let Some(server) = unsafe { taken_back(server)? } {
            server.0.drain();
            server.0.join();
        }
        Ok(())
    });
}

/// Appends a copy of `result_len_bytes` bytes to the result of a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_reply_append(
    reply: *mut farcall_reply,
    result: *const c_void,
    result_len_bytes: usize,
) -> c_int {
    returned(|| {
        // SAFETY: farcall(3), "Pointers": `reply` is the reply of a running handler, which only the thread of the
        // handler uses, and the bytes of the result are readable and not written, until this function returns.
        let (_, result) = unsafe { (object(reply, "reply")?, bytes(result, result_len_bytes, "result")?) };
        // SAFETY: `object` found `reply` neither null nor misaligned. It is the reply of a running handler, and only
        // this thread uses it, so that no other reference to it exists.
        unsafe { &mut *reply }.result.extend_from_slice(result);
        Ok(())
    })
}

/// Refuses a call: instead of a result the caller receives FARCALL_APPLICATION with this code, from 0 to 32767, and
/// this text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn farcall_reply_refuse(
    reply: *mut farcall_reply,
    application_code: u16,
    message: *const c_char,
) -> c_int {
    returned(|| {
        // SAFETY: farcall(3), "Pointers": `reply` is the reply of a running handler, which only the thread of the
        // handler uses, and the text of the message is readable and not written, until this function returns.
        let (_, message) = unsafe { (object(reply, "reply")?, text(message, "message")?) };
        if application_code >= 1 << 15 {
            return Err(Failure::invalid(format!("application_code: {application_code} is more than 32767")));
        }
        // SAFETY: `object` found `reply` neither null nor misaligned. It is the reply of a running handler, and only
        // this thread uses it, so that no other reference to it exists.
        unsafe { &mut *reply }.refusal = Some(HandlerError::new(application_code, message));
        Ok(())
    })
}
