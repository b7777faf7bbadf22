#!/bin/sh
# Installs farcall and its drop-in libraries below a prefix: bin/farcall, and lib/farcall, where `farcall verbs run`
# finds them.
#
#   install.sh PREFIX            builds them from this checkout; needs Rust
#   install.sh PREFIX ARCHIVE    takes a release's archive, a file or an https address (curl fetches it)
set -eu
usage='usage: install.sh PREFIX [ARCHIVE]'
prefix=${1:?$usage}
archive=${2:-}
mkdir -p "$prefix/bin"
prefix=$(cd "$prefix" && pwd)
unpack() {
    tar -C "$prefix" --strip-components=1 -xzf "$1"
}
case $archive in
'') ;;
# tar fails if it does not come whole.
https://*) curl --proto =https --fail --silent --show-error --location "$archive" | unpack - ;;
*) unpack "$archive" ;;
esac
[ -z "$archive" ] || exec "$prefix/bin/farcall" --version

source=$(cd "$(dirname "$0")/../../.." && pwd)
cd "$source"
cargo build --release --locked --package farcall-cli --package farcall-ibverbs --package farcall-rdmacm \
    --package farcall-preload --features full
built=${CARGO_TARGET_DIR:-target}/release
cp "$built/farcall" "$prefix/bin/.farcall.new"
mv "$prefix/bin/.farcall.new" "$prefix/bin/farcall"
"$built/farcall" verbs install "$prefix/lib/farcall"
cp "$built/libfarcall_preload.so" "$prefix/lib/farcall/.libfarcall_preload.so"
mv "$prefix/lib/farcall/.libfarcall_preload.so" "$prefix/lib/farcall/libfarcall_preload.so"
