//! Generates the service with protox, so that protoc is not needed.

use std::path::PathBuf;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=proto/echo.proto");
    let files = protox::compile(["proto/echo.proto"], ["proto"]).map_err(io::Error::other)?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let tonic = tonic_prost_build::configure().build_transport(false);
    prost_build::Config::new()
        .bytes(["."])
        .service_generator(farcall_grpc_build::generator(tonic))
        .compile_fds(files.clone())?;
    fs::write(out.join("echo.bin"), protox::prost::Message::encode_to_vec(&files))
}
