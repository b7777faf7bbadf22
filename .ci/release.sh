# The steps of .ci/run for what a release gives: packages of crates, an archive, a package of Debian, an image. Sourced.
# shellcheck shell=bash disable=SC2154  # .ci/run sets scratch, steps.sh profile.

# Builds every package as it would be published, in the order of their dependencies.
step_package() {
    # Its own folder: cargo takes a package of this version that was built before for the same.
    run cargo publish --workspace --dry-run --target-dir "$scratch/package"
}

# The package that users install: built, installed here, used, removed.
step_deb() {
    need ibverbs-utils man-db
    local as_root=() out=$scratch/deb server
    [[ $(id -u) -eq 0 ]] || as_root=(sudo -n)
    run packaging/build.sh "$out"
    run "${as_root[@]}" dpkg --install "$out"/farcall_*.deb
    run farcall doctor
    farcall verbs run -- ibv_devinfo | grep softnic0
    man --where farcall-kv-serve
    run .github/actions/farcall-verbs/install.sh "$scratch/unpacked" "$out"/farcall-*.tar.gz
    "$scratch/unpacked/bin/farcall" verbs run -- ibv_devinfo | grep softnic0
    # The file that the unit names, without the user and the directories that systemd makes.
    /usr/bin/farcall kv serve --config /etc/farcall/kv.toml &
    server=$!
    farcall kv set greeting hello
    farcall kv get greeting --server rpc:127.0.0.1:11212 | grep -x hello
    kill "$server"
    wait "$server"
    run "${as_root[@]}" dpkg --remove farcall
}

# docs/rdma-in-ci.md states which C library the drop-in libraries load with, wherever they are built.
asks_for_no_newer_glibc() {
    local newest
    newest=$(objdump -T "$@" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
    printf '%s\n' "$newest"
    [[ -n $newest && $(printf '%s\n' "$newest" GLIBC_2.34 | sort -V | tail -n 1) == GLIBC_2.34 ]]
}

# What users copy from docs/rdma-in-ci.md: an installation, and foreign programs in it, for a user with nothing of his
# own.
step_recipe() {
    need ibverbs-utils perftest rdmacm-utils ucx-utils
    run .github/actions/farcall-verbs/install.sh "$scratch/opt"
    run asks_for_no_newer_glibc "$scratch"/opt/lib/farcall/*.so.1
    chmod 711 "$scratch"
    install -m 755 .github/workflows/two-ends.sh "$scratch/two-ends"
    run setpriv --reuid 65534 --regid 65534 --clear-groups env -i "PATH=$scratch/opt/bin:$PATH" "$scratch/two-ends"
}

# An image of the archive. Debian's packages make its base here; by default it is Debian's own image.
step_image() {
    need buildah crun mmdebstrap
    local out=$scratch/image container entry
    export BUILDAH_ISOLATION=chroot STORAGE_DRIVER=vfs
    local buildah=(buildah --root "$scratch/containers" --runroot "$scratch/containers.run")
    run packaging/build.sh "$out"
    run mmdebstrap --quiet --variant=minbase bookworm "$scratch/debian.tar"
    container=$("${buildah[@]}" from scratch)
    run "${buildah[@]}" add --quiet "$container" "$scratch/debian.tar" /
    run "${buildah[@]}" commit --quiet "$container" localhost/debian
    run "${buildah[@]}" bud --build-arg DEBIAN=localhost/debian -f packaging/Containerfile -t farcall-rdma "$out"
    container=$("${buildah[@]}" from localhost/farcall-rdma)
    # What `podman run` would run.
    entry=$("${buildah[@]}" inspect --format '{{range .OCIv1.Config.Entrypoint}}{{.}} {{end}}' "$container")
    # Words, split on purpose.
    # shellcheck disable=SC2086
    "${buildah[@]}" run "$container" -- $entry ibv_devinfo | grep softnic0
    run "${buildah[@]}" run "$container" -- farcall doctor
    run "${buildah[@]}" rm --all
    run "${buildah[@]}" rmi --all --force
}

# Prepares what builds and runs programs for aarch64: Debian's compiler, of which Debian has the standard library for
# every processor of its own. Only unpacked: nothing of a foreign processor is installed.
need_aarch64() {
    need rustc-web gcc-aarch64-linux-gnu libc6-dev-arm64-cross lld qemu-user-static
    local apt=$scratch/apt version
    version=$(dpkg-query --show --showformat='${Version}' rustc-web)
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    printf '%s\n' 'APT::Architecture "arm64";' 'APT::Architectures { "arm64"; };' "Dir::State::lists \"$apt/lists\";" \
        "Dir::Cache \"$apt/cache\";" 'Dir::State::status "/dev/null";' 'APT::Sandbox::User "root";' >"$apt/apt.conf"
    run env APT_CONFIG="$apt/apt.conf" apt-get update -qq
    (cd "$apt" && run env APT_CONFIG="$apt/apt.conf" apt-get download -qq "libstd-rust-web-dev=$version")
    dpkg --extract "$apt"/libstd-rust-web-dev_*_arm64.deb "$apt/unpacked"
    export RUSTC=/usr/bin/rustc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="--sysroot $apt/unpacked/usr" \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64-static -L /usr/aarch64-linux-gnu'
    # Another compiler rebuilds everything.
    export CARGO_TARGET_DIR=$CARGO_TARGET_DIR/aarch64
}

# The archive for aarch64, built here; and the unit tests of what depends on the processor, under emulation. Emulation
# does not reorder memory accesses as such a processor may: step_loom is for that.
step_aarch64() {
    need_aarch64
    local target=aarch64-unknown-linux-gnu farcall out=$scratch/aarch64 server
    FARCALL_PROFILE=dev run packaging/build.sh "$out" "$target"
    mkdir "$out/unpacked"
    tar -C "$out/unpacked" --strip-components=1 -xzf "$out"/farcall-*-arm64.tar.gz
    dpkg --info "$out"/farcall_*_arm64.deb | grep -x ' Architecture: arm64'
    # Words of the runner, split on purpose.
    # shellcheck disable=SC2206
    farcall=($CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER "$out/unpacked/bin/farcall")
    "${farcall[@]}" kv serve &
    server=$!
    "${farcall[@]}" kv set greeting hello
    "${farcall[@]}" kv get greeting --server rpc:127.0.0.1:11212 | grep -x hello
    kill "$server"
    wait "$server"
    # The emulator says yes to MADV_POPULATE_WRITE, and does nothing.
    run cargo test --target "$target" --lib \
        -p farcall-shm -p farcall-wire -p farcall-io -p farcall-kv -p farcall-rpc \
        -- --skip allocates_a_sparse_segment_when_it_is_populated
}
