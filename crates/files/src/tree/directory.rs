//! The names of a directory. Each has a cookie that it keeps: a reader that goes on at a cookie misses no name that was
//! there all the time, and sees none twice, whatever else changes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// The first cookie: those before are of "." and "..".
const FIRST_COOKIE: u64 = 3;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Directory {
    pub parent: u64,
    by_name: BTreeMap<Vec<u8>, (u64, u64)>,
    by_cookie: BTreeMap<u64, Vec<u8>>,
    next_cookie: u64,
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

    /// A name for an inode; what had the name before is returned.
    pub fn set(&mut self, name: &[u8], ino: u64) -> Option<u64> {
        if let Some((of, _)) = self.by_name.get_mut(name) {
            return Some(std::mem::replace(of, ino));
        }
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

    /// Names behind a cookie: cookie, name, inode.
    pub fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &[u8], u64)> {
        let names = self.by_cookie.range(cookie.saturating_add(1)..);
        names.filter_map(|(cookie, name)| Some((*cookie, &**name, self.get(name)?)))
    }

    /// Whether names and cookies fit together: one that came from somewhere else may not.
    pub fn check(&self) -> Result<(), &'static str> {
        let fits = self.by_cookie.iter().all(|(cookie, name)| {
            (FIRST_COOKIE..self.next_cookie).contains(cookie)
                && self.by_name.get(name).is_some_and(|(_, of_name)| of_name == cookie)
        });
        if fits && self.by_cookie.len() == self.by_name.len() { Ok(()) } else { Err("its cookies are wrong") }
    }
}
