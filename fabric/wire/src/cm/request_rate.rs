//! Rate limit of the connection requests of a host. A request costs a search of all connections before any other limit
//! refuses it.

use std::net::Ipv6Addr;
use std::time::Duration;

use super::host_network;
use crate::TokenBucket;

/// Maximum number of requests of a host at once.
const AT_ONCE_MAX: u32 = 256;
/// Interval after which a host may send one more.
const INTERVAL: Duration = Duration::from_millis(1);
/// Maximum number of hosts that are tracked. A further host replaces another one, whose allowance is then full again.
const HOSTS: usize = 256;

/// Requests that a host may still send.
type Allowance = TokenBucket<AT_ONCE_MAX, { INTERVAL.as_nanos() as u64 }>;

/// Network and allowance of each host, at an index derived from its address.
#[derive(Debug)]
pub struct RequestRate(Box<[Option<(u128, Allowance)>; HOSTS]>);

impl Default for RequestRate {
    fn default() -> Self {
        Self(Box::new([None; HOSTS]))
    }
}

impl RequestRate {
    /// Consumes one request of the allowance of a host. Returns whether one was left.
    pub fn take(&mut self, host: Ipv6Addr, now: Duration) -> bool {
        let network = host_network(host);
        let mixed = ((network >> 64) as u64 ^ network as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let place = &mut self.0[(mixed >> 56) as usize % HOSTS];
        let now_ns = now.as_nanos() as u64;
        let (_, allowance) = match place {
            Some(known) if known.0 == network => known,
            _ => place.insert((network, Allowance::full(now_ns))),
        };
        allowance.take(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_the_requests_of_each_host() {
        let mut rate = RequestRate::default();
        let host = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        let mut allowed = |text: &str, now| (0..1_000).filter(|_| rate.take(host(text), now)).count();
        assert_eq!(allowed("::ffff:192.0.2.1", Duration::ZERO), AT_ONCE_MAX as usize);
        assert_eq!(allowed("::ffff:192.0.2.2", Duration::ZERO), AT_ONCE_MAX as usize, "another host");
        assert_eq!(allowed("::ffff:192.0.2.1", 3 * INTERVAL), 3);
        assert_eq!(allowed("2001:db8::1", Duration::ZERO), AT_ONCE_MAX as usize);
        assert_eq!(allowed("2001:db8::2", Duration::ZERO), 0, "a network of IPv6 is one host");
    }
}
