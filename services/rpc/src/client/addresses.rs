//! Where the addresses of several servers come from.

use std::fs::File;
use std::io::{self, Read};
use std::net::ToSocketAddrs;
use std::path::PathBuf;

/// Servers of one client at most.
pub(super) const SERVERS_MAX: usize = 64;
/// Bytes of a file of addresses at most.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Addresses that may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// All addresses of a name, `HOST:PORT`, as the system's resolver gives them.
    Name(String),
    /// The lines of a file, `HOST:PORT` each. Empty lines, and what follows a `#`, do not count.
    File(PathBuf),
}

impl Addresses {
    /// The addresses now, in an order that does not change by itself. This may wait for the resolver or a disk.
    ///
    /// # Errors
    /// If there are none, too many, or the source cannot be read; the error names it.
    pub(super) fn read(&self) -> io::Result<Vec<String>> {
        let (source, read) = match self {
            Self::Name(name) => (name.clone(), resolve(name)),
            Self::File(path) => (path.display().to_string(), read_lines(path)),
        };
        let checked = read.and_then(|addresses| match addresses.len() {
            1..=SERVERS_MAX => Ok(addresses),
            0 => Err(io::Error::other("no address; give at least one")),
            count => Err(io::Error::other(format!("{count} addresses; at most {SERVERS_MAX}"))),
        });
        checked
            .map_err(|why| io::Error::new(why.kind(), format!("addresses of servers from {source}: {why}")))
    }
}

fn resolve(name: &str) -> io::Result<Vec<String>> {
    let mut addresses: Vec<_> = name.to_socket_addrs()?.collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses.iter().map(ToString::to_string).collect())
}

fn read_lines(path: &PathBuf) -> io::Result<Vec<String>> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("more than {FILE_BYTES_MAX} bytes")));
    }
    let mut addresses = Vec::new();
    for line in text.lines() {
        let address = line.split('#').next().unwrap_or_default().trim();
        if !address.is_empty() && !addresses.iter().any(|known| known == address) {
            addresses.push(address.to_owned());
        }
    }
    Ok(addresses)
}
