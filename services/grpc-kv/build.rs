//! Generates the service: protox compiles, so no protoc is needed.

use std::io;

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=proto/ordered_kv.proto");
    let files = protox::compile(["proto/ordered_kv.proto"], ["proto"]).map_err(io::Error::other)?;
    let tonic = tonic_prost_build::configure().build_transport(false);
    prost_build::Config::new()
        .bytes(["."])
        .service_generator(farcall_grpc_build::generator(tonic))
        .compile_fds(files)
}
