//! Arguments and results of calls, and the context in which they are formatted.

use std::ffi::c_int;

use crate::line::Line;

/// When a structure is formatted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before the call: the values that the program passes.
    Given,
    /// After the call, which filled the structure.
    Filled,
    /// After the call, which replaced requested values by granted ones.
    Granted,
}

/// Values of arguments that determine how others are formatted.
#[derive(Clone, Copy, Debug, Default)]
pub struct OtherArguments {
    /// `attr_mask`: which fields of a structure are valid.
    pub mask: c_int,
    /// `level`: the level of an option.
    pub level: c_int,
    /// `len_bytes`: the length of the memory that an untyped pointer refers to.
    pub len_bytes: usize,
}

/// Context of an argument in addition to its type.
pub struct Hint {
    /// The function.
    pub call: &'static str,
    /// The argument's name.
    pub name: &'static str,
    /// The call's other arguments.
    pub others: OtherArguments,
    /// When it is formatted.
    pub phase: Phase,
}

/// An argument of a verbs call.
pub trait Argument: Copy {
    /// Formats the argument.
    ///
    /// # Safety
    /// A pointer must be null, or point to an object that the function's man page requires.
    unsafe fn format(self, line: &mut Line, hint: &Hint);

    /// Returns its value as a number.
    fn number(self) -> Option<i64> {
        None
    }

    /// Returns whether it is omitted: sizes of structures, unused buffers.
    fn is_hidden(self, _name: &str) -> bool {
        false
    }
}

/// The result of a verbs call.
pub trait Returned: Copy {
    /// Formats the result, with the error number if the call failed.
    ///
    /// # Safety
    /// A pointer must be null, or have just been returned by a verbs function.
    unsafe fn format_result(self, call: &str, errno: c_int, line: &mut Line);

    /// Returns whether the call succeeded.
    fn succeeded(self, call: &str) -> bool;

    /// Returns the error number that the result is; 0 if it is none, or only `errno` contains the error.
    fn error_number(self, _call: &str) -> c_int {
        0
    }
}

/// Variables that functions read or fill through a pointer, formatted by their contents.
macro_rules! variables {
    ($($Type:ty as |$value:ident, $line:ident, $hint:ident| $format:expr;)*) => {
        $(impl Argument for *mut $Type {
            unsafe fn format(self, $line: &mut Line, $hint: &Hint) {
                // SAFETY: contract of `Argument::format`: the pointer is null or points to a live variable.
                match unsafe { self.as_ref() } {
                    Some($value) => $format,
                    None => $line.null(),
                }
            }
        })*
    };
}

pub(crate) use variables;
