//! Sets the soname of the shared library, which contains the version of the interface, and keeps the library loaded.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libfarcall.so.0");
    // `dlclose` must not unload the library, because its threads would run unmapped code.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
