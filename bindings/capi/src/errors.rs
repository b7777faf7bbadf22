//! Error codes, their texts, and the message of the last error of each thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

use farcall::binding::{Code, Failure};
use farcall_rpc::Executed;

/// States whether the operation that a function requested was executed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum farcall_executed {
    /// It was not executed and will not be: repeating it is safe.
    No = 0,
    /// It was executed, once.
    Yes = 1,
    /// It may have been executed, at most once.
    Unknown = 2,
}

#[derive(Default)]
struct Last {
    message: CString,
    application_code: u16,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// Stores the message and the application code of a failure for the calling thread.
pub(crate) fn remember(failure: Failure) {
    let message = failure.message.replace('\0', "\u{fffd}");
    // The conversion cannot fail: the message contains no zero byte any more.
    let message = CString::new(message).unwrap_or_default();
    // This fails only while the thread exits, when its thread-local values are already dropped. The message is then
    // lost.
    let _ = LAST.try_with(|last| {
        *last.borrow_mut() = Last { message, application_code: failure.application_code };
    });
}

/// Returns the message of the last error in the calling thread: the operation, the object, the cause and the remedy.
///
/// The text is memory of the library. It is valid until the next function of this library fails in this thread, or the
/// thread exits. Functions that succeed do not change it. Before the first error it is empty.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_error_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().message.as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the application code with which a handler refused the call, if the last error in the calling thread is
/// FARCALL_APPLICATION. Otherwise returns 0.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_error_application_code() -> u16 {
    LAST.try_with(|last| last.borrow().application_code).unwrap_or(0)
}

fn code(number: c_int) -> Option<Code> {
    Code::ALL.iter().copied().find(|code| *code as c_int == number)
}

/// Returns the description of a farcall_code. The text is static. A number that is no farcall_code has a description,
/// too.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_error_text(code: c_int) -> *const c_char {
    self::code(code).map_or(c"a code that this version does not know", Code::text).as_ptr()
}

/// Returns whether an operation that ended with this code was executed, as a farcall_executed.
/// FARCALL_EXECUTED_UNKNOWN for a number that is no farcall_code.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_error_executed(code: c_int) -> c_int {
    let executed = match self::code(code).map_or(Executed::Unknown, Code::executed) {
        Executed::No => farcall_executed::No,
        Executed::Yes => farcall_executed::Yes,
        Executed::Unknown => farcall_executed::Unknown,
    };
    executed as c_int
}
