//! Formatting of the arguments and results of each type.

use std::ffi::{CStr, c_char, c_int, c_void};

use farcall_layout::rdmacm::EventChannel;
use farcall_layout::{Ah, CompChannel, Context, Cq, CqEx, Device, Mr, Pd, Qp, QpEx, Srq};

use crate::argument::{Argument, Hint, Returned, variables};
use crate::cm;
use crate::line::{Format, Line};
use crate::names;

/// Begins the result: ` = ` or a JSON member.
fn begin_result(line: &mut Line) {
    let begin = if line.format() == Format::Text { " = " } else { ",\"ret\":" };
    line.raw(format_args!("{begin}"));
}

/// Formats the name of an error number, or the number.
fn format_errno(number: c_int, line: &mut Line) {
    let name = names::errno(number);
    match (line.format(), name) {
        (Format::Text, Some(name)) => line.raw(format_args!(" {name}")),
        (Format::Text, None) => line.raw(format_args!(" errno {number}")),
        (Format::Json, Some(name)) => line.raw(format_args!(",\"errno\":\"{name}\"")),
        (Format::Json, None) => line.raw(format_args!(",\"errno\":\"{number}\"")),
    }
}

/// Objects, formatted by the number or name that programs and tools use.
macro_rules! objects {
    ($($Object:ident as $kind:literal |$object:ident, $line:ident| $format:expr;)*) => {
        $(
            impl Argument for *mut $Object {
                unsafe fn format(self, line: &mut Line, _hint: &Hint) {
                    // SAFETY: contract of `Argument::format`: the pointer is null or points to a live object.
                    match unsafe { self.as_ref() } {
                        Some($object) => { let $line = line; $format }
                        None => line.null(),
                    }
                }
            }

            impl Returned for *mut $Object {
                unsafe fn format_result(self, _call: &str, errno: c_int, line: &mut Line) {
                    begin_result(line);
                    // SAFETY: contract of `Returned::format_result`: the pointer is null or was just returned by a
                    // verbs function.
                    match unsafe { self.as_ref() } {
                        Some($object) => line.object(|line| {
                            let $line = line.key($kind);
                            $format
                        }),
                        None => {
                            line.null();
                            format_errno(errno, line);
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
        // SAFETY: the name is an array in the live device that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(object.name.as_ptr()) };
        line.text(&name.to_string_lossy());
    };
}

variables! {
    // SAFETY: the function has stored a live completion queue in the variable.
    *mut Cq as |value, line, hint| unsafe { value.format(line, hint) };
    *mut c_void as |value, line, _hint| line.hex(value.addr() as u64);
    c_int as |value, line, hint| match hint.name {
        "attr_mask" => line.flags(*value as u64, &names::qp_attr_mask()),
        _ => line.number(value),
    };
    u16 as |value, line, _hint| line.hex((*value).into());
    [u8; 16] as |value, line, _hint| line.gid(*value);
    [u8; 6] as |value, line, _hint| line.list(value, |line, byte| line.hex((*byte).into()));
    [u32; 3] as |value, line, _hint| line.list(value, |line, word| line.hex((*word).into()));
}

impl Argument for *const [u8; 16] {
    unsafe fn format(self, line: &mut Line, hint: &Hint) {
        // SAFETY: contract of `Argument::format`, which is the same for the mutable pointer.
        unsafe { self.cast_mut().format(line, hint) }
    }
}

/// Addresses that are not dereferenced.
macro_rules! addresses {
    ($($Type:ty),*) => {
        $(impl Argument for $Type {
            unsafe fn format(self, line: &mut Line, _hint: &Hint) {
                if self.is_null() { line.null() } else { line.hex(self.addr() as u64) }
            }
        })*
    };
}

// One of `i8` and `u8` is `c_char`, depending on the architecture.
addresses!(*mut i8, *mut u8, *mut (), *mut *mut Device, *mut *mut Context);

impl Argument for *const c_char {
    unsafe fn format(self, line: &mut Line, _hint: &Hint) {
        if self.is_null() {
            line.null();
        } else {
            // SAFETY: contract of `Argument::format`: the pointer, which is not null, points to a C string.
            line.text(&unsafe { CStr::from_ptr(self) }.to_string_lossy());
        }
    }
}

/// Numbers, some of which are bit masks.
macro_rules! numbers {
    ($($Type:ty),*) => {
        $(impl Argument for $Type {
            unsafe fn format(self, line: &mut Line, hint: &Hint) {
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
    unsafe fn format(self, line: &mut Line, hint: &Hint) {
        if cm::is_read(hint.call, hint.name) && !self.is_null() {
            // SAFETY: contract of `Argument::format`: the pointer, which is not null, points to the `len_bytes` bytes
            // of the call.
            unsafe { cm::format_value(line, self, hint) };
        } else if self.is_null() {
            line.null();
        } else {
            line.hex(self.addr() as u64);
        }
    }
}

impl Argument for *const c_void {
    unsafe fn format(self, line: &mut Line, hint: &Hint) {
        // SAFETY: contract of `Argument::format`, which is the same for the mutable pointer.
        unsafe { self.cast_mut().format(line, hint) }
    }
}

impl Returned for c_int {
    unsafe fn format_result(self, call: &str, errno: c_int, line: &mut Line) {
        begin_result(line);
        line.number(self);
        if self != 0 && !self.succeeded(call) {
            // ibv_rereg_mr returns the state of the region; the reason is in errno.
            let is_in_errno = self == -1 || call == "ibv_rereg_mr";
            format_errno(if is_in_errno { errno } else { self.abs() }, line);
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
    unsafe fn format_result(self, _call: &str, _errno: c_int, line: &mut Line) {
        begin_result(line);
        line.number(self);
        if self < 0 {
            format_errno(self.unsigned_abs() as c_int, line);
        }
    }

    fn succeeded(self, _call: &str) -> bool {
        self >= 0
    }

    fn error_number(self, _call: &str) -> c_int {
        if self < 0 { self.unsigned_abs() as c_int } else { 0 }
    }
}

/// A port in network byte order, as `rdma_get_src_port` returns it.
impl Returned for u16 {
    unsafe fn format_result(self, _call: &str, _errno: c_int, line: &mut Line) {
        begin_result(line);
        line.number(Self::from_be(self));
    }

    fn succeeded(self, _call: &str) -> bool {
        true
    }
}

impl Returned for u64 {
    unsafe fn format_result(self, _call: &str, _errno: c_int, line: &mut Line) {
        begin_result(line);
        line.hex(self);
    }

    fn succeeded(self, _call: &str) -> bool {
        true
    }
}

impl Returned for () {
    unsafe fn format_result(self, _call: &str, _errno: c_int, _line: &mut Line) {}

    fn succeeded(self, _call: &str) -> bool {
        true
    }
}

/// Other returned pointers.
macro_rules! returned_addresses {
    ($($Type:ty),*) => {
        $(impl Returned for $Type {
            unsafe fn format_result(self, _call: &str, errno: c_int, line: &mut Line) {
                begin_result(line);
                if self.is_null() {
                    line.null();
                    format_errno(errno, line);
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
    unsafe fn format_result(self, _call: &str, errno: c_int, line: &mut Line) {
        begin_result(line);
        if self.is_null() {
            line.null();
            format_errno(errno, line);
        } else {
            // SAFETY: contract of `Returned::format_result`: the library returned the pointer, which is not null, to a
            // static C string.
            line.text(&unsafe { CStr::from_ptr(self) }.to_string_lossy());
        }
    }

    fn succeeded(self, _call: &str) -> bool {
        !self.is_null()
    }
}
