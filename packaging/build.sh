#!/bin/sh
# Builds what a release gives, all of it: farcall, its drop-in libraries, manual pages, completions, units of systemd.
#
#   packaging/build.sh OUT [TARGET]    writes OUT/farcall-VERSION-ARCH.tar.gz, to be unpacked anywhere, and
#                                      OUT/farcall_VERSION_ARCH.deb
#
# Needs Rust and dpkg-deb. FARCALL_PROFILE=dev builds without optimisation, to try it.
#
# TARGET, for another processor than this one's: aarch64-unknown-linux-gnu. Needs that target's standard library (rustup
# target add TARGET), gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and lld; and qemu-user-static, because the new binary
# writes its manual pages and completions itself. Cargo's variables CARGO_TARGET_..._LINKER and _RUNNER name others.
set -eu
usage='usage: packaging/build.sh OUT [TARGET]'
out=${1:?$usage}
mkdir -p "$out"
out=$(cd "$out" && pwd)
source=$(cd "$(dirname "$0")/.." && pwd)
cd "$source"
profile=${FARCALL_PROFILE:-release}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
target=${2:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
case $target in
'') arch=$(dpkg --print-architecture) strip=strip runner='' ;;
aarch64-unknown-linux-gnu)
    arch=arm64 strip=aarch64-linux-gnu-strip
    : "${CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER:=aarch64-linux-gnu-gcc}"
    : "${CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER:=qemu-aarch64-static -L /usr/aarch64-linux-gnu}"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER
    runner=$CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER
    # A compiler for another processor asks for its linkers by this name; lld is one for all.
    lld=$(command -v ld.lld) || {
        echo 'ld.lld is missing: apt-get install lld' >&2
        exit 1
    }
    mkdir "$scratch/linkers"
    ln -s "$lld" "$scratch/linkers/aarch64-linux-gnu-ld.lld"
    PATH=$scratch/linkers:$PATH
    ;;
*)
    echo "$target is no target of this script. $usage, with aarch64-unknown-linux-gnu or none" >&2
    exit 2
    ;;
esac

cargo build --profile "$profile" --locked --features full ${target:+--target "$target"} \
    --package farcall-cli --package farcall-ibverbs --package farcall-rdmacm --package farcall-preload
folder=$(if [ "$profile" = dev ]; then echo debug; else echo "$profile"; fi)
built=${CARGO_TARGET_DIR:-target}/${target:+$target/}$folder

# The binary that was built, wherever it can run.
new_farcall() {
    # Words of the runner, split on purpose.
    # shellcheck disable=SC2086
    $runner "$built/farcall" "$@"
}

# Below a prefix, as bin/farcall expects it: the libraries in ../lib/farcall.
install_below() {
    prefix=$1
    install -D -m 755 "$built/farcall" "$prefix/bin/farcall"
    "$strip" --strip-debug "$prefix/bin/farcall"
    new_farcall verbs install "$prefix/lib/farcall" >/dev/null
    install -m 755 "$built/libfarcall_preload.so" "$prefix/lib/farcall/libfarcall_preload.so"
    "$strip" --strip-debug "$prefix"/lib/farcall/*.so*
    new_farcall man "$prefix/share/man/man1" >/dev/null
    mkdir -p "$prefix/share/bash-completion/completions" "$prefix/share/zsh/vendor-completions" \
        "$prefix/share/fish/vendor_completions.d"
    new_farcall completions bash >"$prefix/share/bash-completion/completions/farcall"
    new_farcall completions zsh >"$prefix/share/zsh/vendor-completions/_farcall"
    new_farcall completions fish >"$prefix/share/fish/vendor_completions.d/farcall.fish"
    install -D -m 644 -t "$prefix/share/doc/farcall" README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE \
        packaging/grafana/farcall.json
}

# An archive: the units and the configuration lie there as examples.
archive=farcall-$version-$arch
install_below "$scratch/$archive"
install -D -m 644 -t "$scratch/$archive/share/doc/farcall/systemd" packaging/systemd/*
install -D -m 755 -t "$scratch/$archive/share/doc/farcall/mount" packaging/mount/*
tar -C "$scratch" --owner=0 --group=0 -czf "$out/$archive.tar.gz" "$archive"

# The oldest C library that has every function they ask for.
newest_glibc() {
    readelf --version-info "$@" | grep -o 'GLIBC_2[0-9.]*' | sort -Vu | tail -n 1
}
glibc=$(newest_glibc "$built/farcall" "$built"/lib*.so)
# docs/rdma-in-ci.md states the maxima. Ends the build if a file needs a newer C library.
require_glibc() {
    newest=$(newest_glibc "$2")
    if [ "$(printf '%s\n' "$newest" "$1" | sort -V | tail -n 1)" != "$1" ]; then
        echo "$2 needs $newest; at most $1 is allowed (objdump -T names the symbol)" >&2
        exit 1
    fi
}
# An unoptimised build refers to functions that a release does without.
if [ "$profile" = release ]; then
    for library in "$built"/lib*.so; do require_glibc GLIBC_2.34 "$library"; done
    # A C library from 2.38 on gives the binary newer versions of the same functions.
    case $(printf '%s\n' "$(getconf GNU_LIBC_VERSION | cut -d ' ' -f 2)" 2.38 | sort -V | head -n 1) in
    2.38) require_glibc GLIBC_2.39 "$built/farcall" ;;
    *) require_glibc GLIBC_2.34 "$built/farcall" ;;
    esac
fi

# A package.
root=$scratch/deb
install_below "$root/usr"
gzip -9n "$root"/usr/share/man/man1/*.1
# Where mount(8) and umount(8) look for helpers of a type.
install -D -m 755 -t "$root/sbin" packaging/mount/*
install -D -m 644 -t "$root/lib/systemd/system" packaging/systemd/farcall-kv.service packaging/systemd/farcall-kv.socket
install -D -m 644 packaging/systemd/sysusers.conf "$root/usr/lib/sysusers.d/farcall.conf"
install -D -m 644 packaging/systemd/kv.toml "$root/etc/farcall/kv.toml"
mkdir -p "$root/DEBIAN"
echo /etc/farcall/kv.toml >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/control" <<CONTROL
Package: farcall
Version: $version
Architecture: $arch
Maintainer: The Farcall authors <farcall@example.org>
Section: net
Priority: optional
Depends: libc6 (>= ${glibc#GLIBC_}), libgcc-s1
Suggests: systemd, ibverbs-utils, rdmacm-utils, perftest
Homepage: https://github.com/farcall/farcall
Description: remote calls, a key-value store and RDMA verbs without an RNIC
 A software RNIC in user space for unmodified RDMA programs, remote calls at
 the speed of one-sided RDMA, and a key-value store for memcached clients.
CONTROL
cat >"$root/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
set -e
# The user of the service. It is started by hand: systemctl enable --now farcall-kv
if [ "$1" = configure ]; then
    if command -v systemd-sysusers >/dev/null; then systemd-sysusers farcall.conf; fi
    if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
fi
POSTINST
cat >"$root/DEBIAN/prerm" <<'PRERM'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now farcall-kv.socket farcall-kv.service || true
fi
PRERM
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"
dpkg-deb --root-owner-group --build "$root" "$out/farcall_${version}_$arch.deb"
