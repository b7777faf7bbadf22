//! How many clients a serving program has descriptors for.

use farcall_shm::raise_descriptor_limit;

/// Descriptors that a memcached client takes in a server.
const OF_MEMCACHED_CLIENT: u64 = 1;
/// Descriptors that an RPC client with a process of its own takes in a server on the software RNIC. For the connection:
/// its bootstrap connection, whose end tells that of the client on every provider; what wakes its sender and its
/// receiver; its part of what the memory of several connections shares. For the process: a socket each way, what tells
/// its death, its table of regions.
const OF_RPC_CLIENT: u64 = 9;
/// What a server itself may open.
const OF_SERVER: u64 = 64;

/// Raises the limit of open files as far as this process may, and says in a line how many clients fit.
pub fn raise_limit() -> String {
    let current = raise_descriptor_limit();
    let left = current.saturating_sub(OF_SERVER);
    format!(
        "{current} open files: enough for {} memcached clients or {} RPC clients",
        left / OF_MEMCACHED_CLIENT,
        left / OF_RPC_CLIENT
    )
}
