//! Number of clients for which a serving program has descriptors.

use crate::failure::{Exit, Failure};
use farcall_shm::raise_descriptor_limit;

/// Number of descriptors per memcached client in a server.
const OF_MEMCACHED_CLIENT: u64 = 1;
/// Number of descriptors per RPC client with its own process in a server on the software RNIC. For the connection: its
/// bootstrap connection, by whose end every provider detects that the client is gone; the event descriptors of its
/// sender and its receiver; its share of the memory of several connections. For the process: a socket in each
/// direction, a descriptor that detects its exit, and its table of regions.
const OF_RPC_CLIENT: u64 = 9;
/// Number of descriptors for the server itself.
const OF_SERVER: u64 = 64;

/// Kinds of clients that a server has, which use descriptors.
#[derive(Debug, Clone, Copy)]
pub struct Serves {
    /// `true` if clients of memcached's protocol are served.
    pub memcached: bool,
    /// `true` if RPC clients are served.
    pub rpc: bool,
}

/// Raises the limit of open files to the maximum of this process.
pub fn raise_limit() {
    raise_descriptor_limit();
}

/// Raises the limit of open files to the maximum of this process. Returns a line with the number of clients that fit.
///
/// # Errors
/// If not even one client of a kind that is served fits.
pub fn raise_limit_for(serves: Serves) -> Result<String, Failure> {
    client_capacity(raise_descriptor_limit(), serves)
}

fn client_capacity(limit: u64, serves: Serves) -> Result<String, Failure> {
    let left = limit.saturating_sub(OF_SERVER);
    let needed = [(serves.memcached, OF_MEMCACHED_CLIENT), (serves.rpc, OF_RPC_CLIENT)];
    let of_client = needed.into_iter().filter_map(|(is_served, takes)| is_served.then_some(takes)).max();
    if let Some(of_client) = of_client.filter(|of_client| left < *of_client) {
        let needed = OF_SERVER + of_client;
        return Err(Failure::new("cannot serve: the limit of open files is enough for 0 clients")
            .why(format!("it is {limit}; a server with one client needs {needed}"))
            .remedy(format!("raise it: ulimit -n {}, or LimitNOFILE= of the unit", needed.max(1024)))
            .exit(Exit::Usage));
    }
    Ok(format!(
        "{limit} open files: enough for {} memcached clients or {} RPC clients",
        left / OF_MEMCACHED_CLIENT,
        left / OF_RPC_CLIENT
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_a_limit_below_one_client() {
        let memcached = Serves { memcached: true, rpc: false };
        let both = Serves { memcached: true, rpc: true };
        for (limit, serves) in [(64, memcached), (0, both), (72, both)] {
            let why = client_capacity(limit, serves).unwrap_err().to_string();
            assert!(why.contains("enough for 0 clients") && why.contains(&limit.to_string()), "{why}");
        }
        assert!(client_capacity(65, memcached).unwrap().contains("1 memcached clients or 0 RPC"));
        assert!(client_capacity(73, both).unwrap().contains("9 memcached clients or 1 RPC"));
    }
}
