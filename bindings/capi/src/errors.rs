//! Failures: numbers, texts, and the words of a thread's last one.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

use farcall::binding::{Code, Failure};
use farcall_rpc::Executed;

/// Whether what was asked for was executed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum farcall_executed {
    /// It was not and will not be: asking again is safe.
    No = 0,
    /// It was, once.
    Yes = 1,
    /// It may have been, once at most.
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

/// Keeps a failure's words for the thread.
pub(crate) fn remember(failure: Failure) {
    let message = failure.message.replace('\0', "\u{fffd}");
    // No zero byte is left. A thread that ends keeps no words.
    let message = CString::new(message).unwrap_or_default();
    let _ = LAST.try_with(|last| {
        *last.borrow_mut() = Last { message, application_code: failure.application_code };
    });
}

/// The words of this thread's last failure: what failed, where, why, what to do.
///
/// They belong to the library and are valid until the next function of this library fails in this thread. A function
/// that succeeds leaves them as they are. Before the first failure they are empty.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_error_message() -> *const c_char {
    LAST.try_with(|last| last.borrow().message.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The number that a handler refused with, after FARCALL_APPLICATION in this thread; or else 0.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_error_application_code() -> u16 {
    LAST.try_with(|last| last.borrow().application_code).unwrap_or(0)
}

fn code(number: c_int) -> Option<Code> {
    Code::ALL.iter().copied().find(|code| *code as c_int == number)
}

/// What a code means, in words that live as long as the library. A number that is no code has words, too.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_error_text(code: c_int) -> *const c_char {
    self::code(code).map_or(c"a code that this version does not know", Code::text).as_ptr()
}

/// Whether what failed with a code was executed: a farcall_executed.
#[unsafe(no_mangle)]
pub extern "C" fn farcall_error_executed(code: c_int) -> c_int {
    let executed = match self::code(code).map_or(Executed::Unknown, Code::executed) {
        Executed::No => farcall_executed::No,
        Executed::Yes => farcall_executed::Yes,
        Executed::Unknown => farcall_executed::Unknown,
    };
    executed as c_int
}
