//! Mappings of this process, as listed by the kernel.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

/// Origin of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// No file: heap or anonymous memory, named or not.
    Anonymous,
    /// A file, or memory that behaves like one: device numbers, inode, and offset of the mapping in it.
    File { major: u32, minor: u32, inode: u64, offset: u64 },
    /// Memory of the kernel's own kinds: stacks, vdso.
    Special,
}

/// A line of `/proc/self/maps`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    pub(crate) executable: bool,
    pub(crate) shared: bool,
    pub(crate) source: Source,
}

impl Mapped {
    fn parse(line: &[u8]) -> Option<Self> {
        // File names may contain arbitrary bytes; the fields used here precede them.
        let line = String::from_utf8_lossy(line.get(..line.len().min(128))?);
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let [readable, writable, executable, sharing] = *words.next()?.as_bytes().first_chunk::<4>()?;
        let offset = u64::from_str_radix(words.next()?, 16).ok()?;
        let (major, minor) = words.next()?.split_once(':')?;
        let inode = words.next()?.parse().ok()?;
        let source = match (inode, words.next()) {
            (0, None) => Source::Anonymous,
            (0, Some(name)) if name == "[heap]" || name.starts_with("[anon") => Source::Anonymous,
            (0, Some(_)) => Source::Special,
            _ => Source::File {
                major: u32::from_str_radix(major, 16).ok()?,
                minor: u32::from_str_radix(minor, 16).ok()?,
                inode,
                offset,
            },
        };
        Some(Self {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            readable: readable == b'r',
            writable: writable == b'w',
            executable: executable == b'x',
            shared: sharing == b's',
            source,
        })
    }

    /// Returns the part inside `from..to`; `None` if there is none.
    pub(crate) fn cut(&self, from: u64, to: u64) -> Option<Self> {
        let (start, end) = (self.start.max(from), self.end.min(to));
        let mut source = self.source;
        if let Source::File { offset, .. } = &mut source {
            *offset += start.saturating_sub(self.start);
        }
        (start < end).then_some(Self { start, end, source, ..*self })
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// Iterator over mappings in address order.
pub(crate) struct Maps<R> {
    lines: R,
    text: Vec<u8>,
}

impl Maps<BufReader<File>> {
    /// Opens the list of this process.
    ///
    /// # Errors
    /// Returns an error if there is no `/proc`.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self::of(BufReader::with_capacity(64 << 10, File::open("/proc/self/maps")?)))
    }
}

impl<R: BufRead> Maps<R> {
    pub(crate) fn of(lines: R) -> Self {
        Self { lines, text: Vec::with_capacity(256) }
    }
}

impl<R: BufRead> Iterator for Maps<R> {
    type Item = io::Result<Mapped>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            self.text.clear();
            match self.lines.read_until(b'\n', &mut self.text) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => return Some(Err(error)),
            }
            if let Some(mapped) = Mapped::parse(&self.text) {
                return Some(Ok(mapped));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
1000-3000 r-xp 00002000 fe:01 77   /lib/x
nonsense
3000-5000 rw-p 00000000 00:00 0
5000-6000 rw-p 00000000 00:00 0 [heap]
6000-7000 rw-p 00000000 00:00 0 [anon:of somebody]
7000-8000 rw-p 00000000 00:00 0 [stack]
8000-9000 rw-s 00001000 00:05 17  /memfd:a b (deleted)
";

    #[test]
    fn distinguishes_every_kind_of_mapping() {
        let all: Vec<Mapped> = Maps::of(TEXT.as_bytes()).map(Result::unwrap).collect();
        let sources: Vec<Source> = all.iter().map(|mapped| mapped.source).collect();
        let file = |major, minor, inode, offset| Source::File { major, minor, inode, offset };
        let anonymous = Source::Anonymous;
        let memfd = file(0, 5, 17, 0x1000);
        assert_eq!(
            sources,
            [file(0xfe, 1, 77, 0x2000), anonymous, anonymous, anonymous, Source::Special, memfd]
        );
        assert!(all[0].readable && all[0].executable && !all[0].writable && !all[0].shared);
        assert!(all[5].shared && all[5].writable && !all[5].executable);
    }

    #[test]
    fn a_part_of_a_file_begins_later_in_it() {
        let whole = Maps::of(TEXT.as_bytes()).next().unwrap().unwrap();
        let part = whole.cut(0x2000, 0x9000).unwrap();
        assert_eq!((part.start, part.end, part.len_bytes()), (0x2000, 0x3000, 0x1000));
        assert_eq!(part.source, Source::File { major: 0xfe, minor: 1, inode: 77, offset: 0x3000 });
        assert!(whole.cut(0x3000, 0x4000).is_none() && whole.cut(0, 0x1000).is_none());
    }
}
