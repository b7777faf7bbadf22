//! Packets with a source address of this host.
//!
//! Another host cannot have sent them: the kernel drops packets from a network device whose source is an address of
//! this host. They were sent by a process of this host, and a RoCEv2 packet does not identify the user of its sender.
//! Processes of this host therefore exchange packets over RoCEv2 only where `FARCALL_TRANSPORT` forces that, and only
//! with processes of their own user, which is determined from the kernel's table of UDP sockets.
//!
//! The kernel permits every process to send from any IPv6 address (`IPV6_FREEBIND`). Packets by IPv6 that this host has
//! sent are therefore recognized by the loopback device, on which they arrive. Where RoCEv2 to this host is not forced,
//! a filter of the socket ([`truncate_own_packets`]) empties them, so that they can be counted and dropped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use farcall_verbs::Result;
use farcall_wire::codec::UDP_PORT;

use super::socket::{fail, last_errno};
use crate::process::addresses::is_of_this_host;
use crate::process::rendezvous::is_own_user;

/// Validity of a verdict. Addresses and sockets of a host change.
const VALID_NS: u64 = 1_000_000_000;
/// Maximum number of addresses, and of sockets, whose verdicts are cached.
const CACHED: usize = 256;

/// A verdict about a `K`, and the time until which it is valid.
#[derive(Clone, Copy)]
struct Verdict<K> {
    about: K,
    is_true: bool,
    until_ns: u64,
}

/// Verdicts by a hash of their `about`; a newer one replaces an older one with the same hash.
struct Cache<K>(Box<[Option<Verdict<K>>; CACHED]>);

impl<K: Copy + PartialEq> Cache<K> {
    fn new() -> Self {
        Self(Box::new([None; CACHED]))
    }

    /// Returns the cached verdict, or that of `query` with the time until which it is valid.
    fn get(&mut self, about: K, hash: u64, now_ns: u64, query: impl FnOnce() -> (bool, u64)) -> bool {
        let place = &mut self.0[(hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize % CACHED];
        match place {
            Some(known) if known.about == about && now_ns < known.until_ns => known.is_true,
            _ => {
                let (is_true, until_ns) = query();
                *place = Some(Verdict { about, is_true, until_ns });
                is_true
            }
        }
    }
}

/// Admission of packets by the host and the user of their sender.
pub(super) struct Sources {
    /// `true` if RoCEv2 is forced, also to this host.
    is_forced: bool,
    are_of_this_host: Cache<Ipv6Addr>,
    are_own_users: Cache<(Ipv6Addr, u16)>,
    sockets: UdpSockets,
}

impl Sources {
    pub(super) fn new(is_forced: bool) -> Self {
        let sockets = UdpSockets::default();
        Self { is_forced, are_of_this_host: Cache::new(), are_own_users: Cache::new(), sockets }
    }

    /// Returns whether a packet is from another host, or from a process of this user where RoCEv2 is forced to this
    /// host.
    pub(super) fn admits(&mut self, src: Ipv6Addr, src_port: u16, now_ns: u64) -> bool {
        let bits = u128::from(src);
        let hash = (bits >> 64) as u64 ^ bits as u64;
        if !self.are_of_this_host.get(src, hash, now_ns, || (is_of_this_host(src), now_ns + VALID_NS)) {
            return true;
        }
        // All sockets of this port belong to one user, and one of them to this process.
        self.is_forced
            && (src_port == UDP_PORT
                || self.are_own_users.get((src, src_port), hash ^ u64::from(src_port) << 32, now_ns, || {
                    let is_own = self.sockets.are_own_users(src, src_port, now_ns);
                    (is_own, self.sockets.valid_until_ns)
                }))
    }
}

/// Makes the kernel empty the IPv6 datagrams that a socket receives from this host or, if `truncates` is `false`,
/// deliver all datagrams unchanged again.
///
/// # Errors
/// Returns an error if the kernel refuses.
pub(super) fn truncate_own_packets(socket: BorrowedFd<'_>, truncates: bool) -> Result<()> {
    /// Index of the loopback device in every network namespace.
    const LOOPBACK: u32 = 1;
    /// Length of a UDP header, which a filter cannot remove.
    const HEADER_BYTES: u32 = 8;
    const fn step(code: u32, (jt, jf): (u8, u8), k: u32) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt, jf, k }
    }
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let mut steps = [
        step(LOAD, (0, 0), (libc::SKF_AD_OFF + libc::SKF_AD_IFINDEX).cast_unsigned()),
        step(JUMP_IF_EQUAL, (0, 3), LOOPBACK),
        step(LOAD, (0, 0), (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL).cast_unsigned()),
        step(JUMP_IF_EQUAL, (0, 1), libc::ETH_P_IPV6.cast_unsigned()),
        step(RETURN, (0, 0), HEADER_BYTES),
        step(RETURN, (0, 0), u32::MAX),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let name = if truncates { libc::SO_ATTACH_FILTER } else { libc::SO_DETACH_FILTER };
    let len_bytes = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the first option takes a `sock_fprog`; the second ignores its value, of which it requires four bytes.
    // `program` and `steps` outlive the call, and the kernel copies them.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, (&raw const program).cast(), len_bytes)
    };
    match result {
        0 => Ok(()),
        // No filter was attached.
        _ if !truncates && last_errno() == rustix::io::Errno::NOENT => Ok(()),
        _ => Err(fail("filter packets that this host sends")(last_errno())),
    }
}

/// Returns whether a datagram is one that the filter has emptied. An empty IPv6 datagram of another host is not
/// distinguished from those; it is no packet either.
pub(super) fn is_truncated(src: Ipv6Addr, datagram: &[u8]) -> bool {
    datagram.is_empty() && src.to_ipv4_mapped().is_none()
}

/// A UDP socket of this host.
#[derive(Clone, Copy)]
struct UdpSocketEntry {
    address: Ipv6Addr,
    port: u16,
    user: u32,
}

impl UdpSocketEntry {
    /// Returns whether the socket can send from an address and port.
    fn can_send(&self, src: Ipv6Addr, src_port: u16) -> bool {
        self.port == src_port
            && (self.address == src
                || self.address.is_unspecified()
                || self.address == Ipv4Addr::UNSPECIFIED.to_ipv6_mapped() && src.to_ipv4_mapped().is_some())
    }
}

/// UDP sockets of this host. A host with many queue pairs has many ports, whose verdicts follow from one query.
#[derive(Default)]
struct UdpSockets {
    entries: Vec<UdpSocketEntry>,
    valid_until_ns: u64,
}

impl UdpSockets {
    /// Returns whether at least one socket can send from an address and port, and all such sockets belong to this user.
    /// If the last query does not show that, the kernel is queried again, because the socket may be new.
    fn are_own_users(&mut self, src: Ipv6Addr, src_port: u16, now_ns: u64) -> bool {
        if now_ns < self.valid_until_ns && self.has_own_users(src, src_port) {
            return true;
        }
        let tables =
            ["udp", "udp6"].map(|table| std::fs::read_to_string(format!("/proc/thread-self/net/{table}")));
        self.entries.clear();
        self.entries.extend(tables.iter().flatten().flat_map(|table| entries_of(table)));
        self.valid_until_ns = now_ns + VALID_NS;
        self.has_own_users(src, src_port)
    }

    fn has_own_users(&self, src: Ipv6Addr, src_port: u16) -> bool {
        let mut senders = self.entries.iter().filter(|entry| entry.can_send(src, src_port)).peekable();
        senders.peek().is_some() && senders.all(|entry| is_own_user(entry.user))
    }
}

/// Returns the sockets in a table of the kernel (`/proc/net/udp`, `/proc/net/udp6`).
fn entries_of(table: &str) -> impl Iterator<Item = UdpSocketEntry> {
    table.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (address, port) = fields.nth(1)?.split_once(':')?;
        let (address, port) = (address_of(address)?, u16::from_str_radix(port, 16).ok()?);
        Some(UdpSocketEntry { address, port, user: fields.nth(5)?.parse().ok()? })
    })
}

/// Parses an address of these tables: words of 32 bits in the byte order of this machine.
fn address_of(hex: &str) -> Option<Ipv6Addr> {
    let word = |at: usize| Some(u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let address: IpAddr = match hex.len() {
        8 => IpAddr::V4(word(0)?.into()),
        32 => {
            let octets = [word(0)?, word(8)?, word(16)?, word(24)?].concat();
            IpAddr::V6(<[u8; 16]>::try_from(octets).ok()?.into())
        }
        _ => return None,
    };
    Some(match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    const OWN: Ipv6Addr = Ipv4Addr::new(127, 0, 0, 5).to_ipv6_mapped();
    const OTHER_HOST: Ipv6Addr = Ipv4Addr::new(192, 0, 2, 77).to_ipv6_mapped();

    #[test]
    fn drops_own_addresses_unless_roce_is_forced() {
        let mut sources = Sources::new(false);
        for own in [OWN, Ipv6Addr::LOCALHOST, Ipv4Addr::LOCALHOST.to_ipv6_mapped()] {
            assert!(!sources.admits(own, UDP_PORT, 0), "{own}");
        }
        assert!(sources.admits(OTHER_HOST, 1, 0) && sources.admits(OTHER_HOST, 1, 2 * VALID_NS));
    }

    #[test]
    fn admits_own_sockets_if_roce_is_forced() {
        let mut sources = Sources::new(true);
        let socket = UdpSocket::bind(("127.0.0.5", 0)).unwrap();
        let port = socket.local_addr().unwrap().port();
        assert!(sources.admits(OWN, port, 0));
        drop(socket);
        assert!(!sources.admits(OWN, port, VALID_NS), "the sender is unknown");
        let everywhere = UdpSocket::bind(("::", 0)).unwrap();
        let port = everywhere.local_addr().unwrap().port();
        assert!(sources.admits(OWN, port, 0) && sources.admits(Ipv6Addr::LOCALHOST, port, 0));
    }

    #[test]
    fn reads_the_users_of_sockets_from_tables_of_the_kernel() {
        let udp6 = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  1: 0000000000000000FFFF00000500007F:B7C1 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 32 2 0 0
  2: 00000000000000000000000000000000:B7C1 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000    33        0 33 2 0 0
  3: 00000000000000000000000000000000:B7C2 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000    34        0 33 2 0 0";
        let udp = "  1: 00000000:B7C1 00000000:0000 07 00000000:00000000 00:00000000 00000000  7  0 32 2 0 0\n 2: zz";
        let users_of = |table, src, port| {
            let senders = entries_of(table).filter(move |entry| entry.can_send(src, port));
            senders.map(|entry| entry.user)
        };
        assert_eq!(users_of(udp6, OWN, 0xB7C1).collect::<Vec<_>>(), [1000, 33]);
        assert_eq!(users_of(udp, OWN, 0xB7C1).collect::<Vec<_>>(), [7]);
        assert_eq!(users_of(udp, Ipv6Addr::LOCALHOST, 0xB7C1).count(), 0, "IPv6 has none of IPv4's sockets");
    }
}
