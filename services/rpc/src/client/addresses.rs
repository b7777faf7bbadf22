//! Sources of the addresses of several servers.

use std::fs::File;
use std::io::{self, Read};
use std::net::ToSocketAddrs;
use std::path::PathBuf;

/// Maximum number of servers of one client.
pub(super) const SERVERS_MAX: usize = 64;
/// Maximum length of a file of addresses in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// A source of addresses that may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// All addresses of a name, `HOST:PORT`, from the system's resolver.
    Name(String),
    /// The lines of a file, `HOST:PORT` each. Empty lines, and text after a `#`, are ignored.
    File(PathBuf),
}

impl Addresses {
    /// Returns the current addresses, in an order that is stable while they do not change. May block on the resolver
    /// or a disk.
    ///
    /// # Errors
    /// Returns an error that names the source if it has no addresses, too many, or cannot be read.
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
