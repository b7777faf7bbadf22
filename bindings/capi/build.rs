//! Gives the library its name: programs ask for the version of its interface.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libfarcall.so.0");
    // Its threads do not survive being unloaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
