//! Gives the library its name and its symbol versions.

use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=versions.map");
    // A copy among what is built: a build folder may outlive the checkout, and serve another.
    let versions = Path::new(&env::var_os("OUT_DIR").expect("cargo sets it")).join("versions.map");
    fs::copy("versions.map", &versions).expect("the map can be copied");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", versions.display());
    // Rust gives the linker a map of its own, and GNU ld takes one alone. On x86-64 Rust links by lld anyway.
    if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch != "x86_64") {
        println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    }
}
