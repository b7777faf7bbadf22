//! The names of a directory. Each has a cookie, which it keeps while it is replaced or renamed within the directory. A
//! reader therefore misses no name that exists from the start to the end of its scan, and reads none twice, whatever
//! else changes. A scan always ends: it covers only cookies below the limit that its first request found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Maximum length of a name in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// The first cookie; smaller ones identify "." and "..".
const FIRST_COOKIE: u64 = 3;
/// Number of low bits of a position that hold the limit of the scan. Positions are positive in an `i64`: what `telldir`
/// returns.
const LIMIT_BITS: u32 = 32;
/// Upper bound of cookies. A directory that has used all of them renumbers its names.
const COOKIE_END: u64 = 1 << (i64::BITS - 1 - LIMIT_BITS);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Directory {
    pub parent: u64,
    by_name: BTreeMap<Vec<u8>, (u64, u64)>,
    by_cookie: BTreeMap<u64, Vec<u8>>,
    next_cookie: u64,
}

/// Where a reader of a directory continues, and which names its scan covers.
#[derive(Clone, Copy)]
pub(super) struct Scan {
    /// Cookie of the last name that was read; 0 before the first.
    cookie: u64,
    /// Names with this cookie or a larger one are not part of the scan: they were added after its start.
    limit: u64,
}

impl Scan {
    /// Returns whether the name with this cookie has not been read yet.
    pub const fn includes(self, cookie: u64) -> bool {
        cookie > self.cookie && cookie < self.limit
    }

    /// Returns the position of a reader that has read the name with this cookie.
    pub const fn position_after(self, cookie: u64) -> u64 {
        cookie << LIMIT_BITS | self.limit
    }
}

impl Directory {
    pub fn new(parent: u64) -> Self {
        Self { parent, by_name: BTreeMap::new(), by_cookie: BTreeMap::new(), next_cookie: FIRST_COOKIE }
    }

    pub fn get(&self, name: &[u8]) -> Option<u64> {
        self.by_name.get(name).map(|(ino, _)| *ino)
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Sets the inode of a name and returns the one that the name had. A name that exists keeps its cookie.
    pub fn set(&mut self, name: &[u8], ino: u64) -> Option<u64> {
        if let Some((of, _)) = self.by_name.get_mut(name) {
            return Some(std::mem::replace(of, ino));
        }
        self.renumber_if_exhausted();
        self.by_name.insert(name.to_vec(), (ino, self.next_cookie));
        self.by_cookie.insert(self.next_cookie, name.to_vec());
        self.next_cookie += 1;
        None
    }

    pub fn remove(&mut self, name: &[u8]) -> Option<u64> {
        let (ino, cookie) = self.by_name.remove(name)?;
        self.by_cookie.remove(&cookie);
        Some(ino)
    }

    /// Renames within this directory. The new name keeps its cookie if it exists, and has that of the old name
    /// otherwise.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) {
        let Some((ino, cookie)) = self.by_name.remove(from) else { return };
        self.by_cookie.remove(&cookie);
        if let Some((of, _)) = self.by_name.get_mut(to) {
            *of = ino;
        } else {
            self.by_name.insert(to.to_vec(), (ino, cookie));
            self.by_cookie.insert(cookie, to.to_vec());
        }
    }

    /// Returns the scan of a position; position 0 begins a new one.
    pub const fn scan(&self, position: u64) -> Scan {
        match position {
            0 => Scan { cookie: 0, limit: self.next_cookie },
            _ => Scan { cookie: position >> LIMIT_BITS, limit: position & ((1 << LIMIT_BITS) - 1) },
        }
    }

    /// Returns all names: name, inode.
    pub fn names(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.by_name.iter().map(|(name, (ino, _))| (&**name, *ino))
    }

    /// Returns the remaining names of a scan: cookie, name, inode.
    pub fn after(&self, scan: Scan) -> impl Iterator<Item = (u64, &[u8], u64)> {
        let names = self.by_cookie.range(scan.cookie.saturating_add(1)..);
        let names = names.take_while(move |(cookie, _)| scan.includes(**cookie));
        names.filter_map(|(cookie, name)| Some((*cookie, &**name, self.get(name)?)))
    }

    /// Renumbers the names in order if no cookie is left. A scan in progress then ends early.
    pub fn renumber_if_exhausted(&mut self) {
        if self.next_cookie < COOKIE_END {
            return;
        }
        self.next_cookie = FIRST_COOKIE;
        for name in std::mem::take(&mut self.by_cookie).into_values() {
            if let Some((_, cookie)) = self.by_name.get_mut(&name) {
                *cookie = self.next_cookie;
                self.by_cookie.insert(self.next_cookie, name);
                self.next_cookie += 1;
            }
        }
    }

    /// Checks the consistency of names and cookies, for untrusted directories.
    pub fn check(&self) -> Result<(), &'static str> {
        let fits = self.by_cookie.iter().all(|(cookie, name)| {
            (FIRST_COOKIE..self.next_cookie).contains(cookie)
                && self.by_name.get(name).is_some_and(|(_, of_name)| of_name == cookie)
        });
        if fits && self.by_cookie.len() == self.by_name.len() { Ok(()) } else { Err("its cookies are wrong") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Directory, position: u64) -> Vec<Vec<u8>> {
        directory.after(directory.scan(position)).map(|(_, name, _)| name.to_vec()).collect()
    }

    #[test]
    fn renumbers_names_in_order_when_cookies_are_used_up() {
        let mut directory = Directory::new(1);
        for name in 0..5 {
            directory.set(&[b'e' - name], name.into());
        }
        directory.remove(b"c");
        directory.next_cookie = COOKIE_END;
        directory.check().unwrap();
        let before = names(&directory, 0);
        directory.set(b"new", 9);
        directory.check().unwrap();
        assert_eq!(directory.next_cookie, FIRST_COOKIE + 5);
        assert_eq!(names(&directory, 0), [before, vec![b"new".to_vec()]].concat());
        let last = directory.scan(0).position_after(COOKIE_END - 1);
        assert!(i64::try_from(last).is_ok_and(|last| last > 0), "telldir returns a positive number");
    }
}
