//! Sets the library's soname and symbol versions.

use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=versions.map");
    // A copy in `OUT_DIR`: a build directory may outlive the checkout, and be used by another one.
    let versions = Path::new(&env::var_os("OUT_DIR").expect("cargo sets it")).join("versions.map");
    fs::copy("versions.map", &versions).expect("the map can be copied");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={}", versions.display());
    // rustc passes a version script of its own, and GNU ld accepts only one. On x86-64 rustc uses lld anyway.
    if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch != "x86_64") {
        println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    }
}
