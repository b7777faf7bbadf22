//! A call, from its begin to its end.

use std::cell::Cell;
use std::ffi::c_int;

use crate::argument::{Argument, Hint, OtherArguments, Phase, Returned};
use crate::line::{Format, Line};
use crate::target::{now_ns, target};
use crate::{errno, names};

thread_local! {
    /// Whether this thread is in a call already: what the library calls for it is no call of the program's.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A call under way. Arguments are shown before it is executed, because it may destroy them.
pub struct Call {
    line: Line,
    name: &'static str,
    /// When the library took over: showing arguments is none of its work.
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
    /// Begins a call of the program; `None` if it is not shown.
    pub fn begin(name: &'static str) -> Option<Self> {
        Self::begun_at(name, now_ns())
    }

    /// A call that began at [`now_ns`], before it was known to be worth a line.
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

    /// Looks at an argument that others may need; all of them, before the first is shown.
    pub fn look(&mut self, name: &'static str, argument: impl Argument) {
        let number = || argument.number().unwrap_or(0);
        match name.trim_start_matches('_') {
            "attr_mask" => self.others.mask = number() as c_int,
            "level" => self.others.level = number() as c_int,
            "len_bytes" => self.others.len_bytes = number() as usize,
            _ => {}
        }
    }

    /// Shows an argument, unless the call is to fill it.
    ///
    /// # Safety
    /// See [`Argument::show`].
    pub unsafe fn argument(&mut self, name: &'static str, argument: impl Argument) {
        let name = name.trim_start_matches('_');
        if names::is_output(self.name, name) || argument.is_hidden(name) {
            return;
        }
        let hint = Hint { call: self.name, name, others: self.others, phase: Phase::Given };
        // SAFETY: the caller's promise.
        unsafe { argument.show(self.line.key(name), &hint) };
    }

    /// Shows a further argument in words of its own.
    pub fn shows(&mut self, name: &str, show: impl FnOnce(&mut Line)) {
        show(self.line.key(name));
    }

    /// The arguments are shown: the library is about to do what was asked.
    pub fn executes(&mut self) {
        self.executes_ns = now_ns();
    }

    /// The call has been executed.
    ///
    /// # Safety
    /// See [`Returned::show_result`].
    pub unsafe fn returned(&mut self, value: impl Returned) {
        let errno = errno::get();
        self.took_ns = now_ns().saturating_sub(self.executes_ns);
        let closed = if self.line.format() == Format::Text { ')' } else { '}' };
        self.line.raw(format_args!("{closed}"));
        self.succeeded = value.succeeded(self.name);
        // SAFETY: the caller's promise.
        unsafe { value.show_result(self.name, errno, &mut self.line) };
    }

    /// Shows what the call filled, if it did.
    ///
    /// # Safety
    /// See [`Argument::show`].
    pub unsafe fn output(&mut self, name: &'static str, argument: impl Argument) {
        let name = name.trim_start_matches('_');
        let is_granted = names::is_granted(self.name, name);
        if !self.succeeded || !(is_granted || names::is_output(self.name, name)) || argument.is_hidden(name) {
            return;
        }
        let phase = if is_granted { Phase::Granted } else { Phase::Filled };
        let hint = Hint { call: self.name, name, others: self.others, phase };
        self.result(name, |line| {
            // SAFETY: the caller's promise.
            unsafe { argument.show(line, &hint) }
        });
    }

    /// Shows a further result.
    pub fn result(&mut self, name: &str, show: impl FnOnce(&mut Line)) {
        if !self.has_outputs {
            let open = if self.line.format() == Format::Text { " {" } else { ",\"out\":{" };
            self.line.raw(format_args!("{open}"));
            self.line.begin_members();
            self.has_outputs = true;
        }
        show(self.line.key(name));
    }

    /// Writes the line. Leaves errno as it is.
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

/// Says whether this thread is in a call of the program's already, and returns what was said before: for another
/// library, whose calls of ours are no calls of the program's.
pub fn set_inside(is_inside: bool) -> bool {
    INSIDE.replace(is_inside)
}

/// A line about something that is no call.
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

/// A call begins to wait for something: what a program hangs in is the last thing to be seen of it.
pub fn waits(what: &str, fill: impl FnOnce(&mut Line)) {
    note("waits", |line| {
        line.key("for").word(what);
        fill(line);
    });
}
