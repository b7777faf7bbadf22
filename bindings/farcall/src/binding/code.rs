//! Failures as numbers.

use std::ffi::CStr;

use farcall_rpc::Executed;

macro_rules! codes {
    ($($(#[doc = $doc:literal])* $name:ident = $number:literal, executed $executed:ident, $text:literal;)*) => {
        impl Code {
            /// All codes, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the name of the variant.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// Returns the description for users.
            pub const fn text(self) -> &'static CStr {
                match self { $(Self::$name => $text,)* }
            }

            /// Returns whether the requested operation was executed.
            pub const fn executed(self) -> Executed {
                match self { $(Self::$name => Executed::$executed,)* }
            }
        }

        #[cfg(test)]
        const NUMBERS: &[(Code, i32)] = &[$((Code::$name, $number)),*];
    };
}

/// Result of a function. Numbers never change their meaning; later versions add some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub enum Code {
    /// Done.
    Ok = 0,
    /// An argument is invalid: null, misaligned or out of range. Nothing was done.
    Invalid = 1,
    /// Another thread is in a function with the same object. Nothing was done.
    Busy = 2,
    /// The library panicked, which is a defect of the library. The object can only be closed.
    Panicked = 3,
    /// The system has no thread, descriptor or memory left.
    System = 4,
    /// The device cannot be used.
    Device = 5,
    /// No process listens at the address, or no reply arrived in time.
    Unreachable = 6,
    /// The other end refuses the connection, or does not speak this protocol.
    Refused = 7,
    /// The deadline passed before the call was sent. It was not executed.
    DeadlineExceeded = 8,
    /// The connection is lost and the call was never sent.
    NotSent = 9,
    /// The call was sent, and there is no way to know whether it was executed.
    OutcomeUnknown = 10,
    /// The server did not execute the call: it is shutting down, or has no space for it.
    NotExecuted = 11,
    /// The call was executed, and its result is lost.
    ResultLost = 12,
    /// The handler refused the call, with a code of its own.
    Application = 13,
    /// The request or the value is longer than the server accepts. It was not executed.
    TooLarge = 14,
    /// The key is invalid: empty, or longer than 250 bytes.
    Key = 15,
    /// The key has no item.
    NotFound = 16,
    /// The condition of the write did not hold. Nothing was changed.
    NotStored = 17,
    /// The item has another version. Nothing was changed.
    OtherVersion = 18,
    /// The value is no decimal number. Nothing was changed.
    NotANumber = 19,
    /// The store is full and does not evict. Nothing was changed.
    StoreFull = 20,
    /// The server was restarted with other partitions: connect again.
    Moved = 21,
    /// A non-blocking function would have to wait.
    WouldBlock = 22,
    /// The time-out has passed. Nothing was read, written or accepted.
    TimedOut = 23,
    /// The stream broke: the other end has exited or reset it, and bytes that had not arrived are lost.
    Reset = 24,
    /// This end has ended its stream, or the peer no longer reads it.
    BrokenPipe = 25,
}

codes! {
    Ok = 0, executed Yes, c"done";
    Invalid = 1, executed No, c"an argument cannot be right";
    Busy = 2, executed No, c"another thread uses the object; use one for each thread, or a lock";
    Panicked = 3, executed Unknown, c"the library failed in itself; close the object, and report this";
    System = 4, executed No, c"the system gives no thread, descriptor or memory";
    Device = 5, executed No, c"the device cannot be used; run farcall doctor";
    Unreachable = 6, executed No, c"no server answers at the address; is it running?";
    Refused = 7, executed No, c"the other end refuses";
    DeadlineExceeded = 8, executed No, c"the deadline passed before the call was sent";
    NotSent = 9, executed No, c"the connection is lost and the call was not sent; connect again";
    OutcomeUnknown = 10, executed Unknown, c"the outcome is unknown; if the call is idempotent, call again";
    NotExecuted = 11, executed No, c"the server did not execute the call; call again later";
    ResultLost = 12, executed Yes, c"the call was executed, and its result cannot be had";
    Application = 13, executed Yes, c"the handler refused the call";
    TooLarge = 14, executed No, c"longer than the server takes";
    Key = 15, executed No, c"the key cannot be one";
    NotFound = 16, executed Yes, c"the key has no item";
    NotStored = 17, executed Yes, c"the condition of the write did not hold";
    OtherVersion = 18, executed Yes, c"the item has another version";
    NotANumber = 19, executed Yes, c"the value is no decimal number";
    StoreFull = 20, executed Yes, c"the store is full and does not evict";
    Moved = 21, executed No, c"the server was restarted with other partitions; connect again";
    WouldBlock = 22, executed No, c"it would have to wait";
    TimedOut = 23, executed No, c"the time has expired";
    Reset = 24, executed Unknown, c"the stream broke";
    BrokenPipe = 25, executed No, c"the peer does not read this stream any more";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_list_are_those_of_the_type() {
        assert!(NUMBERS.iter().all(|(code, number)| *code as i32 == *number));
        assert!(Code::ALL.iter().zip(0..).all(|(code, number)| *code as i32 == number));
    }
}
