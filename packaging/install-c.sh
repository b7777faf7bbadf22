#!/bin/sh
# Builds the C library from this checkout and installs it below a prefix: lib/libfarcall.so, lib/libfarcall.a,
# include/farcall.h, lib/pkgconfig/farcall.pc, share/man/man3. Needs Rust.
set -eu
prefix=${1:?usage: install-c.sh PREFIX}
source=$(cd "$(dirname "$0")/.." && pwd)
cd "$source"
cargo build --release --locked --package farcall-capi
built=${CARGO_TARGET_DIR:-target}/release
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
mkdir -p "$prefix"
prefix=$(cd "$prefix" && pwd)
mkdir -p "$prefix/include" "$prefix/lib/pkgconfig" "$prefix/share/man/man3"
install -m 644 bindings/capi/include/farcall.h "$prefix/include/"
install -m 755 "$built/libfarcall_capi.so" "$prefix/lib/libfarcall.so.$version"
ln -sf "libfarcall.so.$version" "$prefix/lib/libfarcall.so.0"
ln -sf libfarcall.so.0 "$prefix/lib/libfarcall.so"
install -m 644 "$built/libfarcall_capi.a" "$prefix/lib/libfarcall.a"
sed -e "s|@prefix@|$prefix|" -e "s|@version@|$version|" bindings/capi/farcall.pc.in >"$prefix/lib/pkgconfig/farcall.pc"
install -m 644 bindings/capi/man/*.3 "$prefix/share/man/man3/"
