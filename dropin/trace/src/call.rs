//! A call from its beginning to its end.

use std::cell::Cell;
use std::ffi::c_int;

use crate::argument::{Argument, Hint, OtherArguments, Phase, Returned};
use crate::line::{Format, Line};
use crate::target::{now_ns, target};
use crate::{errno, names};

thread_local! {
    /// `true` if this thread is already inside a call: calls that the library makes for it are not calls by the
    /// program.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A call in progress. Arguments are formatted before it is executed, because it may destroy them.
pub struct Call {
    line: Line,
    name: &'static str,
    /// When the library began to execute the call. The time for formatting arguments does not count.
    executes_ns: u64,
    took_ns: u64,
    others: OtherArguments,
    succeeded: bool,
    has_outputs: bool,
}

fn begin_line(format: Format, at_ns: u64, began_ns: u64) -> Line {
    let at_ns = at_ns.saturating_sub(began_ns);
    let (at_s, at_us) = (at_ns / 1_000_000_000, at_ns / 1000 % 1_000_000);
    let tid = rustix::thread::gettid().as_raw_nonzero();
    let mut line = Line::new(format);
    match format {
        Format::Text => line.raw(format_args!("{at_s:>5}.{at_us:06} {tid} ")),
        Format::Json => {
            let pid = std::process::id();
            line.raw(format_args!("{{\"t\":{at_s}.{at_us:06},\"pid\":{pid},\"tid\":{tid},"));
        }
    }
    line
}

impl Call {
    /// Begins a call by the program; `None` if it is not traced.
    pub fn begin(name: &'static str) -> Option<Self> {
        Self::begun_at(name, now_ns())
    }

    /// Begins a call that began at `began_ns` (by [`now_ns`]), before it was known to be worth a line.
    pub fn begun_at(name: &'static str, began_ns: u64) -> Option<Self> {
        let target = target()?;
        if names::is_silent(name) {
            return None;
        }
        if INSIDE.replace(true) {
            return None;
        }
        let name = name.trim_start_matches('_');
        let mut line = begin_line(target.format, began_ns, target.began_ns);
        match target.format {
            Format::Text => line.raw(format_args!("{name}(")),
            Format::Json => line.raw(format_args!("\"call\":\"{name}\",\"args\":{{")),
        }
        let (executes_ns, took_ns) = (began_ns, 0);
        let others = OtherArguments::default();
        Some(Self { line, name, executes_ns, took_ns, others, succeeded: false, has_outputs: false })
    }

    /// Reads an argument that determines the format of others. Called for all arguments before the first is formatted.
    pub fn read_hint(&mut self, name: &'static str, argument: impl Argument) {
        let number = || argument.number().unwrap_or(0);
        match name.trim_start_matches('_') {
            "attr_mask" => self.others.mask = number() as c_int,
            "level" => self.others.level = number() as c_int,
            "len_bytes" => self.others.len_bytes = number() as usize,
            _ => {}
        }
    }

    /// Formats an argument, unless the call fills it.
    ///
    /// # Safety
    /// See [`Argument::format`].
    pub unsafe fn argument(&mut self, name: &'static str, argument: impl Argument) {
        let name = name.trim_start_matches('_');
        if names::is_output(self.name, name) || argument.is_hidden(name) {
            return;
        }
        let hint = Hint { call: self.name, name, others: self.others, phase: Phase::Given };
        // SAFETY: contract of this function, which is that of `Argument::format`.
        unsafe { argument.format(self.line.key(name), &hint) };
    }

    /// Formats a further argument with `format`.
    pub fn add_argument(&mut self, name: &str, format: impl FnOnce(&mut Line)) {
        format(self.line.key(name));
    }

    /// Called after the arguments are formatted, immediately before the call is executed.
    pub fn executes(&mut self) {
        self.executes_ns = now_ns();
    }

    /// Called after the call has been executed.
    ///
    /// # Safety
    /// See [`Returned::format_result`].
    pub unsafe fn returned(&mut self, value: impl Returned) {
        let errno = errno::get();
        self.took_ns = now_ns().saturating_sub(self.executes_ns);
        let closed = if self.line.format() == Format::Text { ')' } else { '}' };
        self.line.raw(format_args!("{closed}"));
        self.succeeded = value.succeeded(self.name);
        // SAFETY: contract of this function, which is that of `Returned::format_result`.
        unsafe { value.format_result(self.name, errno, &mut self.line) };
    }

    /// Formats an argument that the call filled, if the call succeeded.
    ///
    /// # Safety
    /// See [`Argument::format`].
    pub unsafe fn output(&mut self, name: &'static str, argument: impl Argument) {
        let name = name.trim_start_matches('_');
        let is_granted = names::is_granted(self.name, name);
        if !self.succeeded || !(is_granted || names::is_output(self.name, name)) || argument.is_hidden(name) {
            return;
        }
        let phase = if is_granted { Phase::Granted } else { Phase::Filled };
        let hint = Hint { call: self.name, name, others: self.others, phase };
        self.result(name, |line| {
            // SAFETY: contract of this function, which is that of `Argument::format`.
            unsafe { argument.format(line, &hint) }
        });
    }

    /// Formats a further result.
    pub fn result(&mut self, name: &str, format: impl FnOnce(&mut Line)) {
        if !self.has_outputs {
            let open = if self.line.format() == Format::Text { " {" } else { ",\"out\":{" };
            self.line.raw(format_args!("{open}"));
            self.line.begin_members();
            self.has_outputs = true;
        }
        format(self.line.key(name));
    }

    /// Writes the line. Preserves `errno`.
    pub fn end(mut self) {
        let errno = errno::get();
        if self.has_outputs {
            self.line.raw(format_args!("}}"));
        }
        let (us, ns) = (self.took_ns / 1000, self.took_ns % 1000);
        match self.line.format() {
            Format::Text => self.line.raw(format_args!(" <{us}.{ns:03} us>")),
            Format::Json => self.line.raw(format_args!(",\"us\":{us}.{ns:03}}}")),
        }
        self.line.end();
        if let Some(target) = target() {
            target.write(self.line.bytes());
        }
        errno::set(errno);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Sets whether this thread counts as inside a call, and returns the previous value. For another library that calls
/// this one on its own behalf.
pub fn set_inside(is_inside: bool) -> bool {
    INSIDE.replace(is_inside)
}

/// Writes a line about an event that is not a call.
pub fn note(kind: &str, fill: impl FnOnce(&mut Line)) {
    let Some(target) = target() else { return };
    let errno = errno::get();
    let mut line = begin_line(target.format, now_ns(), target.began_ns);
    match target.format {
        Format::Text => {
            line.raw(format_args!("-- {kind} "));
            line.object(fill);
        }
        Format::Json => {
            line.raw(format_args!("\"note\":\"{kind}\",\"about\":"));
            line.object(fill);
            line.raw(format_args!("}}"));
        }
    }
    line.end();
    target.write(line.bytes());
    errno::set(errno);
}

/// Writes that a call begins to wait: if a program hangs, this is its last line.
pub fn waits(what: &str, fill: impl FnOnce(&mut Line)) {
    note("waits", |line| {
        line.key("for").word(what);
        fill(line);
    });
}
