//! One line, as text for users or JSON for programs, in a buffer of fixed size.

use std::fmt::{self, Write};

/// Format of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `name(key=value, …) = result`.
    Text,
    /// One JSON object per line. Numbers that text shows in hexadecimal are strings.
    Json,
}

/// Maximum number of bytes that a pipe accepts without mixing them with other writes (`PIPE_BUF`).
const ROOM: usize = 4096;
/// Bytes that lists leave free for the end of a line: result, outputs, duration.
const TAIL: usize = 512;

/// A line being written. Elements that do not fit are left out; a list ends with their number.
pub struct Line {
    bytes: [u8; ROOM],
    len: usize,
    format: Format,
    /// `true` if another key or element precedes the next one in its object or list.
    follows: bool,
}

impl Line {
    /// Creates an empty line.
    pub fn new(format: Format) -> Self {
        Self { bytes: [0; ROOM], len: 0, format, follows: false }
    }

    /// Returns the line.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Writes text without escaping. Bytes that exceed the buffer are dropped.
    pub fn raw(&mut self, text: fmt::Arguments<'_>) {
        let _ = self.write_fmt(text);
    }

    /// Begins an element of a list.
    pub fn element(&mut self) {
        if self.follows {
            let comma = if self.format == Format::Text { ", " } else { "," };
            self.raw(format_args!("{comma}"));
        }
        self.follows = true;
    }

    /// Begins a member of an object, whose value follows.
    pub fn key(&mut self, name: &str) -> &mut Self {
        self.element();
        match self.format {
            Format::Text => self.raw(format_args!("{name}=")),
            Format::Json => self.raw(format_args!("\"{name}\":")),
        }
        self
    }

    /// Writes members of an object that are numbers.
    pub fn numbers<'a>(&mut self, members: impl IntoIterator<Item = (&'a str, impl fmt::Display)>) {
        for (name, value) in members {
            self.key(name).number(value);
        }
    }

    /// Writes an object; `fill` writes its members.
    pub fn object(&mut self, fill: impl FnOnce(&mut Self)) {
        self.enclosed('{', '}', fill);
    }

    /// Writes text between two brackets.
    pub fn enclosed(&mut self, open: char, close: char, fill: impl FnOnce(&mut Self)) {
        self.raw(format_args!("{open}"));
        self.follows = false;
        fill(self);
        self.raw(format_args!("{close}"));
        self.follows = true;
    }

    /// Begins the members of an object that is closed elsewhere.
    pub(crate) fn begin_members(&mut self) {
        self.follows = false;
    }

    /// Writes a list; elements that do not fit are counted at its end.
    pub fn list<T>(&mut self, items: impl IntoIterator<Item = T>, mut format: impl FnMut(&mut Self, T)) {
        self.enclosed('[', ']', |line| {
            let mut left_out = 0_usize;
            for item in items {
                if left_out == 0 {
                    let (before, followed) = (line.len, line.follows);
                    line.element();
                    format(line, item);
                    if line.len <= ROOM - TAIL {
                        continue;
                    }
                    (line.len, line.follows) = (before, followed);
                }
                left_out += 1;
            }
            if left_out > 0 {
                line.element();
                line.word_fmt(format_args!("{left_out} more"));
            }
        });
    }

    /// Writes a number.
    pub fn number(&mut self, value: impl fmt::Display) {
        self.raw(format_args!("{value}"));
    }

    /// Writes an address, a key or a mask.
    pub fn hex(&mut self, value: u64) {
        self.word_fmt(format_args!("{value:#x}"));
    }

    /// Writes a queue pair number in the format of rdma-core's programs.
    pub fn qpn(&mut self, number: u32) {
        self.word_fmt(format_args!("{number:#08x}"));
    }

    /// Writes a name from the specification.
    pub fn word(&mut self, word: &str) {
        self.word_fmt(format_args!("{word}"));
    }

    /// Writes a name composed of parts that need no escaping.
    pub fn word_fmt(&mut self, word: fmt::Arguments<'_>) {
        match self.format {
            Format::Text => self.raw(word),
            Format::Json => self.raw(format_args!("\"{word}\"")),
        }
    }

    /// Writes arbitrary text, quoted, truncated to 500 characters.
    pub fn text(&mut self, text: &str) {
        self.raw(format_args!("\""));
        for character in text.chars().take(500) {
            match character {
                '"' | '\\' => self.raw(format_args!("\\{character}")),
                '\0'..=' ' if character != ' ' => self.raw(format_args!("\\u{:04x}", character as u32)),
                _ => self.raw(format_args!("{character}")),
            }
        }
        self.raw(format_args!("\""));
    }

    /// Writes bits by name, and those without a name in hexadecimal.
    pub fn flags(&mut self, bits: u64, names: &[(u64, &str)]) {
        let quote = if self.format == Format::Json { "\"" } else { "" };
        self.raw(format_args!("{quote}"));
        let (mut left, mut bar) = (bits, "");
        for (bit, name) in names {
            if left & bit != 0 {
                self.raw(format_args!("{bar}{name}"));
                (left, bar) = (left & !bit, "|");
            }
        }
        if left != 0 || bits == 0 {
            self.raw(format_args!("{bar}{left:#x}"));
        }
        self.raw(format_args!("{quote}"));
    }

    /// Formats the name of a number if there is one, and the number otherwise.
    pub fn word_or_number(&mut self, word: Option<&str>, number: impl std::fmt::Display) {
        match word {
            Some(word) => self.word(word),
            None => self.number(number),
        }
    }

    /// Formats a GID as an IPv6 address.
    pub fn gid(&mut self, gid: [u8; 16]) {
        self.word_fmt(format_args!("{}", std::net::Ipv6Addr::from(gid)));
    }

    /// Writes a missing value.
    pub fn null(&mut self) {
        let null = if self.format == Format::Text { "NULL" } else { "null" };
        self.raw(format_args!("{null}"));
    }

    /// Ends the line, even if the buffer is full.
    pub fn end(&mut self) {
        self.len = self.len.min(ROOM - 1);
        self.raw(format_args!("\n"));
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let taken = text.len().min(room.len());
        room[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn both(fill: impl Fn(&mut Line)) -> (String, String) {
        let [text, json] = [Format::Text, Format::Json].map(|format| {
            let mut line = Line::new(format);
            fill(&mut line);
            String::from_utf8(line.bytes().to_vec()).unwrap()
        });
        (text, json)
    }

    #[test]
    fn one_description_two_formats() {
        let (text, json) = both(|line| {
            line.object(|line| {
                line.key("qp").qpn(0x2a);
                line.key("flags").flags(0b1011, &[(1, "FENCE"), (2, "SIGNALED")]);
                line.key("of").list([1, 2], |line, item| line.object(|line| line.key("n").number(item)));
                line.key("none").null();
            });
        });
        assert_eq!(text, "{qp=0x00002a, flags=FENCE|SIGNALED|0x8, of=[{n=1}, {n=2}], none=NULL}");
        assert_eq!(
            json,
            r#"{"qp":"0x00002a","flags":"FENCE|SIGNALED|0x8","of":[{"n":1},{"n":2}],"none":null}"#
        );
    }

    #[test]
    fn a_long_list_is_counted_and_the_line_stays_whole() {
        let mut line = Line::new(Format::Json);
        line.object(|line| {
            line.key("list").list(0..1000, |line, _| line.text("an element of some length"));
            line.key("after").number(1);
        });
        let parsed: serde_json::Value = serde_json::from_slice(line.bytes()).unwrap();
        let list = parsed["list"].as_array().unwrap();
        let left_out = list.last().unwrap().as_str().unwrap().strip_suffix(" more").unwrap();
        assert_eq!(list.len() - 1 + left_out.parse::<usize>().unwrap(), 1000);
        assert_eq!(parsed["after"], 1);
    }

    proptest! {
        #[test]
        fn any_text_is_a_json_string(text in any::<String>()) {
            let mut line = Line::new(Format::Json);
            line.text(&text);
            let parsed: String = serde_json::from_slice(line.bytes()).unwrap();
            prop_assert_eq!(parsed, text.chars().take(500).collect::<String>());
        }
    }
}
