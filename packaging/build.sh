#!/bin/sh
# Builds what a release gives, all of it: farcall, its drop-in libraries, manual pages, completions, units of systemd.
#
#   packaging/build.sh OUT      writes OUT/farcall-VERSION-ARCH.tar.gz, to be unpacked anywhere, and OUT/farcall_VERSION_ARCH.deb
#
# Needs Rust and dpkg-deb. FARCALL_PROFILE=dev builds without optimisation, to try it.
set -eu
out=${1:?usage: packaging/build.sh OUT}
mkdir -p "$out"
out=$(cd "$out" && pwd)
source=$(cd "$(dirname "$0")/.." && pwd)
cd "$source"
profile=${FARCALL_PROFILE:-release}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
arch=$(dpkg --print-architecture)

cargo build --profile "$profile" --locked --features full \
    --package farcall-cli --package farcall-ibverbs --package farcall-rdmacm --package farcall-preload
built=${CARGO_TARGET_DIR:-target}/$(if [ "$profile" = dev ]; then echo debug; else echo "$profile"; fi)

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Below a prefix, as bin/farcall expects it: the libraries in ../lib/farcall.
install_below() {
    prefix=$1
    install -D -m 755 "$built/farcall" "$prefix/bin/farcall"
    strip --strip-debug "$prefix/bin/farcall"
    "$built/farcall" verbs install "$prefix/lib/farcall" >/dev/null
    install -m 755 "$built/libfarcall_preload.so" "$prefix/lib/farcall/libfarcall_preload.so"
    strip --strip-debug "$prefix"/lib/farcall/*.so*
    "$built/farcall" man "$prefix/share/man/man1" >/dev/null
    mkdir -p "$prefix/share/bash-completion/completions" "$prefix/share/zsh/vendor-completions" \
        "$prefix/share/fish/vendor_completions.d"
    "$built/farcall" completions bash >"$prefix/share/bash-completion/completions/farcall"
    "$built/farcall" completions zsh >"$prefix/share/zsh/vendor-completions/_farcall"
    "$built/farcall" completions fish >"$prefix/share/fish/vendor_completions.d/farcall.fish"
    install -D -m 644 -t "$prefix/share/doc/farcall" README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE \
        packaging/grafana/farcall.json
}

# An archive: the units and the configuration lie there as examples.
archive=farcall-$version-$arch
install_below "$scratch/$archive"
install -D -m 644 -t "$scratch/$archive/share/doc/farcall/systemd" packaging/systemd/*
tar -C "$scratch" --owner=0 --group=0 -czf "$out/$archive.tar.gz" "$archive"

# A package.
root=$scratch/deb
install_below "$root/usr"
gzip -9n "$root"/usr/share/man/man1/*.1
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
Depends: libc6 (>= $(ldd --version | sed -n '1s/.* //p')), libgcc-s1
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
