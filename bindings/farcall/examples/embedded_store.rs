//! The key-value store as a service inside of a program, for RPC clients and for any memcached client.
//!
//!     cargo run -p farcall --example embedded_store

use std::time::Duration;

use farcall::kv::{Change, KvClient, KvServer, MemcachedClient, Write};
use farcall::rpc::ClientOptions;
use farcall::{Nic, SoftNic};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two threads, each with its half of the keys. Port 0 lets the system choose.
    let nic = Nic::open(&SoftNic::new())?;
    let server = KvServer::builder()
        .partitions(2)
        .memory_bytes(64 << 20)
        .tcp("127.0.0.1:0".parse()?)
        .rpc("127.0.0.1:0".parse()?, &nic)
        .start()?;
    let rpc_address = server.rpc_address().expect("served on an RPC address");
    let tcp_address = server.tcp_addresses()[0];
    println!("memcached clients: {tcp_address}, RPC clients: {rpc_address}");

    // Over RPC: a connection to each partition; the hash of a key determines its partition.
    let options = ClientOptions::default();
    let mut store = KvClient::connect(&nic, &rpc_address.to_string(), &options)?;
    let Change::Done { version } = store.put(b"greeting", Write::of(b"hello"))? else {
        panic!("an unconditional write is done")
    };
    store.put(b"soon gone", Write::of(b"x").time_to_live(Duration::from_secs(60)))?;

    // The same records over memcached's protocol.
    let mut memcached = MemcachedClient::connect_tcp(tcp_address)?;
    let value = memcached.get(b"greeting")?.map(|value| value.bytes.to_vec());
    assert_eq!(value.as_deref(), Some(&b"hello"[..]));
    memcached.set(b"greeting", b"hello again")?;

    // A write on the condition that no other client has written in the meantime.
    let outcome = store.compare_and_swap(b"greeting", version, Write::of(b"too late"))?;
    assert_eq!(outcome, Change::OtherVersion);
    let item = store.get(b"greeting")?.expect("still there");
    println!("greeting: {}", String::from_utf8_lossy(item.value));

    // The server replies to the requests received so far, then its threads end.
    server.stop()?;
    Ok(())
}
