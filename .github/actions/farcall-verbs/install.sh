#!/bin/sh
# Builds farcall and its drop-in libraries from this checkout and installs them below a prefix: bin/farcall, and lib/farcall,
# where `farcall verbs run` finds them. Needs Rust.
set -eu
prefix=${1:?usage: install.sh PREFIX}
source=$(cd "$(dirname "$0")/../../.." && pwd)
cd "$source"
cargo build --release --locked --package farcall-cli --package farcall-ibverbs --package farcall-rdmacm \
    --package farcall-preload --features full
built=${CARGO_TARGET_DIR:-target}/release
mkdir -p "$prefix/bin"
cp "$built/farcall" "$prefix/bin/.farcall.new"
mv "$prefix/bin/.farcall.new" "$prefix/bin/farcall"
"$built/farcall" verbs install "$prefix/lib/farcall"
cp "$built/libfarcall_preload.so" "$prefix/lib/farcall/.libfarcall_preload.so"
mv "$prefix/lib/farcall/.libfarcall_preload.so" "$prefix/lib/farcall/libfarcall_preload.so"
