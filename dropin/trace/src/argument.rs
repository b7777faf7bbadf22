//! How arguments and results look.

use std::ffi::{CStr, c_char, c_int, c_void};

use farcall_layout::rdmacm::EventChannel;
use farcall_layout::{Ah, CompChannel, Context, Cq, CqEx, Device, Mr, Pd, Qp, QpEx, Srq};

use crate::cm;
use crate::line::{Format, Line};
use crate::names;

/// When a structure is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before the call: what the program wants.
    Given,
    /// After the call, which filled it.
    Filled,
    /// After the call, which changed what was wanted to what there is.
    Granted,
}

/// Arguments that say how others are to be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct OtherArguments {
    /// `attr_mask`: what of a structure counts.
    pub mask: c_int,
    /// `level`: whose option it is.
    pub level: c_int,
    /// `len_bytes`: of what a pointer to bytes points to.
    pub len_bytes: usize,
}

/// What is known about an argument besides its type.
pub struct Hint {
    /// The function.
    pub call: &'static str,
    /// The argument's name.
    pub name: &'static str,
    /// The call's other arguments.
    pub others: OtherArguments,
    /// When it is shown.
    pub phase: Phase,
}

/// An argument of a verbs call.
pub trait Argument: Copy {
    /// Shows it.
    ///
    /// # Safety
    /// A pointer must be null or point to what the function's man page asks for.
    unsafe fn show(self, line: &mut Line, hint: &Hint);

    /// Its value as a number.
    fn number(self) -> Option<i64> {
        None
    }

    /// Whether it says nothing: sizes of structures, unused buffers.
    fn is_hidden(self, _name: &str) -> bool {
        false
    }
}

/// What a verbs call returns.
pub trait Returned: Copy {
    /// Shows it, with the error number if it failed.
    ///
    /// # Safety
    /// A pointer must be null or what a verbs function just returned.
    unsafe fn show_result(self, call: &str, errno: c_int, line: &mut Line);

    /// Whether it did what was asked.
    fn succeeded(self, call: &str) -> bool;

    /// The error number that it is; 0 if it is none, or tells it by `errno` alone.
    fn error_number(self, _call: &str) -> c_int {
        0
    }
}

/// Begins the result: ` = ` or a member.
fn begin_result(line: &mut Line) {
    let begin = if line.format() == Format::Text { " = " } else { ",\"ret\":" };
    line.raw(format_args!("{begin}"));
}

/// The error number's name, or the number.
fn show_errno(number: c_int, line: &mut Line) {
    let name = names::errno(number);
    match (line.format(), name) {
        (Format::Text, Some(name)) => line.raw(format_args!(" {name}")),
        (Format::Text, None) => line.raw(format_args!(" errno {number}")),
        (Format::Json, Some(name)) => line.raw(format_args!(",\"errno\":\"{name}\"")),
        (Format::Json, None) => line.raw(format_args!(",\"errno\":\"{number}\"")),
    }
}

/// Objects by what programs and tools call them.
macro_rules! objects {
    ($($Object:ident as $kind:literal |$object:ident, $line:ident| $show:expr;)*) => {
        $(
            impl Argument for *mut $Object {
                unsafe fn show(self, line: &mut Line, _hint: &Hint) {
                    // SAFETY: the caller's promise.
                    match unsafe { self.as_ref() } {
                        Some($object) => { let $line = line; $show }
                        None => line.null(),
                    }
                }
            }

            impl Returned for *mut $Object {
                unsafe fn show_result(self, _call: &str, errno: c_int, line: &mut Line) {
                    begin_result(line);
                    // SAFETY: what a function just made, or null.
                    match unsafe { self.as_ref() } {
                        Some($object) => line.object(|line| {
                            let $line = line.key($kind);
                            $show
                        }),
                        None => {
                            line.null();
                            show_errno(errno, line);
                        }
                    }
                }

                fn succeeded(self, _call: &str) -> bool {
                    !self.is_null()
                }
            }
        )*
    };
}

objects! {
    Context as "context" |object, line| line.number(object.cmd_fd);
    Pd as "pd" |object, line| line.hex(std::ptr::from_ref(object).addr() as u64);
    Ah as "ah" |object, line| line.hex(std::ptr::from_ref(object).addr() as u64);
    Mr as "mr" |object, line| line.object(|line| {
        line.key("lkey").hex(object.lkey.into());
        line.key("rkey").hex(object.rkey.into());
    });
    CompChannel as "channel" |object, line| line.number(object.fd);
    EventChannel as "channel" |object, line| line.number(object.fd);
    Cq as "cq" |object, line| line.number(object.handle);
    CqEx as "cq" |object, line| line.number(object.base.handle);
    Srq as "srq" |object, line| line.number(object.handle);
    Qp as "qp" |object, line| line.qpn(object.qp_num);
    QpEx as "qp" |object, line| line.qpn(object.qp_base.qp_num);
    Device as "device" |object, line| {
        // SAFETY: an array of the device's that ends with a zero.
        let name = unsafe { CStr::from_ptr(object.name.as_ptr()) };
        line.text(&name.to_string_lossy());
    };
}

/// What functions read or fill through a pointer: shown by what it points to.
macro_rules! variables {
    ($($Type:ty as |$value:ident, $line:ident, $hint:ident| $show:expr;)*) => {
        $(impl Argument for *mut $Type {
            unsafe fn show(self, $line: &mut Line, $hint: &Hint) {
                // SAFETY: the caller's promise.
                match unsafe { self.as_ref() } {
                    Some($value) => $show,
                    None => $line.null(),
                }
            }
        })*
    };
}

pub(crate) use variables;

variables! {
    // SAFETY: the queue that the function filled in.
    *mut Cq as |value, line, hint| unsafe { value.show(line, hint) };
    *mut c_void as |value, line, _hint| line.hex(value.addr() as u64);
    c_int as |value, line, hint| match hint.name {
        "attr_mask" => line.flags(*value as u64, &names::qp_attr_mask()),
        _ => line.number(value),
    };
    u16 as |value, line, _hint| line.hex((*value).into());
    [u8; 16] as |value, line, _hint| show_gid(*value, line);
    [u8; 6] as |value, line, _hint| line.list(value, |line, byte| line.hex((*byte).into()));
    [u32; 3] as |value, line, _hint| line.list(value, |line, word| line.hex((*word).into()));
}

/// A GID as an IPv6 address.
pub(crate) fn show_gid(gid: [u8; 16], line: &mut Line) {
    line.word_fmt(format_args!("{}", std::net::Ipv6Addr::from(gid)));
}

impl Argument for *const [u8; 16] {
    unsafe fn show(self, line: &mut Line, hint: &Hint) {
        // SAFETY: the caller's promise.
        unsafe { self.cast_mut().show(line, hint) }
    }
}

/// Addresses that are not looked behind.
macro_rules! addresses {
    ($($Type:ty),*) => {
        $(impl Argument for $Type {
            unsafe fn show(self, line: &mut Line, _hint: &Hint) {
                if self.is_null() { line.null() } else { line.hex(self.addr() as u64) }
            }
        })*
    };
}

// One of i8 and u8 is `c_char`, by the processor.
addresses!(*mut i8, *mut u8, *mut (), *mut *mut Device, *mut *mut Context);

impl Argument for *const c_char {
    unsafe fn show(self, line: &mut Line, _hint: &Hint) {
        if self.is_null() {
            line.null();
        } else {
            // SAFETY: the caller's promise.
            line.text(&unsafe { CStr::from_ptr(self) }.to_string_lossy());
        }
    }
}

/// Numbers, some of which are bits.
macro_rules! numbers {
    ($($Type:ty),*) => {
        $(impl Argument for $Type {
            unsafe fn show(self, line: &mut Line, hint: &Hint) {
                match hint.name {
                    "access" => line.flags(u64::from(self as u32), &names::ACCESS),
                    "flags" if hint.call == "ibv_rereg_mr" => {
                        line.flags(u64::from(self as u32), &names::REREG_FLAGS);
                    }
                    "attr_mask" if hint.call.contains("srq") => {
                        line.flags(u64::from(self as u32), &names::SRQ_ATTR_MASK);
                    }
                    "attr_mask" => line.flags(u64::from(self as u32), &names::qp_attr_mask()),
                    "iova" | "pkey_be" => line.hex(self as u64),
                    _ => match cm::word_of(hint, self as i64) {
                        Some(word) => line.word(word),
                        None => line.number(self),
                    },
                }
            }

            fn number(self) -> Option<i64> {
                i64::try_from(self).ok()
            }

            fn is_hidden(self, name: &str) -> bool {
                name == "entry_bytes"
            }
        })*
    };
}

numbers!(c_int, u8, u16, u32, u64, usize);

impl Argument for *mut c_void {
    unsafe fn show(self, line: &mut Line, hint: &Hint) {
        if cm::is_read(hint.call, hint.name) && !self.is_null() {
            // SAFETY: the caller's promise.
            unsafe { cm::show_value(line, self, hint) };
        } else if self.is_null() {
            line.null();
        } else {
            line.hex(self.addr() as u64);
        }
    }
}

impl Argument for *const c_void {
    unsafe fn show(self, line: &mut Line, hint: &Hint) {
        // SAFETY: the caller's promise.
        unsafe { self.cast_mut().show(line, hint) }
    }
}

impl Returned for c_int {
    unsafe fn show_result(self, call: &str, errno: c_int, line: &mut Line) {
        begin_result(line);
        line.number(self);
        if self != 0 && !self.succeeded(call) {
            // ibv_rereg_mr returns what has become of the region; the reason is in errno.
            let is_in_errno = self == -1 || call == "ibv_rereg_mr";
            show_errno(if is_in_errno { errno } else { self.abs() }, line);
        }
    }

    fn succeeded(self, call: &str) -> bool {
        self == 0 || (self > 0 && names::COUNTING.contains(&call))
    }

    fn error_number(self, call: &str) -> c_int {
        if self > 0 && !self.succeeded(call) { self } else { 0 }
    }
}

impl Returned for isize {
    unsafe fn show_result(self, _call: &str, _errno: c_int, line: &mut Line) {
        begin_result(line);
        line.number(self);
        if self < 0 {
            show_errno(self.unsigned_abs() as c_int, line);
        }
    }

    fn succeeded(self, _call: &str) -> bool {
        self >= 0
    }

    fn error_number(self, _call: &str) -> c_int {
        if self < 0 { self.unsigned_abs() as c_int } else { 0 }
    }
}

/// A port in network order, as `rdma_get_src_port` returns it.
impl Returned for u16 {
    unsafe fn show_result(self, _call: &str, _errno: c_int, line: &mut Line) {
        begin_result(line);
        line.number(Self::from_be(self));
    }

    fn succeeded(self, _call: &str) -> bool {
        true
    }
}

impl Returned for u64 {
    unsafe fn show_result(self, _call: &str, _errno: c_int, line: &mut Line) {
        begin_result(line);
        line.hex(self);
    }

    fn succeeded(self, _call: &str) -> bool {
        true
    }
}

impl Returned for () {
    unsafe fn show_result(self, _call: &str, _errno: c_int, _line: &mut Line) {}

    fn succeeded(self, _call: &str) -> bool {
        true
    }
}

/// Other pointers that are returned.
macro_rules! returned_addresses {
    ($($Type:ty),*) => {
        $(impl Returned for $Type {
            unsafe fn show_result(self, _call: &str, errno: c_int, line: &mut Line) {
                begin_result(line);
                if self.is_null() {
                    line.null();
                    show_errno(errno, line);
                } else {
                    line.hex(self.addr() as u64);
                }
            }

            fn succeeded(self, _call: &str) -> bool {
                !self.is_null()
            }
        })*
    };
}

returned_addresses!(*mut *mut Device, *mut *mut Context, *mut c_void);

impl Returned for *const c_char {
    unsafe fn show_result(self, _call: &str, errno: c_int, line: &mut Line) {
        begin_result(line);
        if self.is_null() {
            line.null();
            show_errno(errno, line);
        } else {
            // SAFETY: a name that the library returns.
            line.text(&unsafe { CStr::from_ptr(self) }.to_string_lossy());
        }
    }

    fn succeeded(self, _call: &str) -> bool {
        !self.is_null()
    }
}
