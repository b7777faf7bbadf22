# The steps of .ci/run: one function each. Sourced.

# Prints a command and runs it, without input.
run() {
    printf '$ %s\n' "$*"
    "$@" </dev/null
}

# Installs Debian packages that are not there yet.
need() {
    local package missing=()
    for package; do
        dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0
    run apt-get update -qq
    run apt-get install -qq -y --no-install-recommends "${missing[@]}"
}

# The repository speaks of the project alone: no path of anybody's machine, no dependency from elsewhere.
step_guard() {
    local found
    if found=$(git grep -nIE '(^|[^A-Za-z0-9_.$}-])/(root|home|work|Users)/' -- . ':!.ci/steps.sh'); then
        printf '%s\n' "$found" "Paths of a developer's machine: name them relatively."
        return 1
    fi
    if found=$(git grep -n '^source = ' -- '*Cargo.lock' | grep -vF 'registry+https://github.com/rust-lang/crates.io-index'); then
        printf '%s\n' "$found" 'Dependencies from elsewhere than crates.io cannot be published.'
        return 1
    fi
    run sh -n .github/actions/farcall-verbs/install.sh
    run bash -n .github/workflows/two-ends.sh .ci/run .ci/steps.sh .ci/guest/qemu .ci/guest/uml .ci/guest/uml_build .ci/guest/lane.sh .ci/guest/checks
    run sh -n .ci/guest/init
    # Parsed only: compiled, it would leave a file in the clone that packaging then refuses.
    run python3 .ci/mutations.py --list
    local script
    for script in .ci/*.py; do
        run python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$script"
    done
}

step_format() {
    run cargo fmt --all --check
    run cargo fmt --manifest-path fuzz/Cargo.toml --check
}

# README's command for the tests. With the C header, layouts of libibverbs' structures are compared, too.
step_test() {
    # What tests compare with and run; without it they say that they are skipped.
    need libibverbs-dev ibverbs-utils perftest ucx-utils python3-pyverbs librdmacm-dev rdmacm-utils libfabric-bin \
        iproute2
    run cargo test --workspace
}

# What the default features leave out: the tokio adapters.
step_features() {
    run cargo test --package farcall-drive --package farcall-rpc --all-features
}

step_clippy() {
    run cargo clippy --workspace --all-targets --all-features -- -D warnings
}

step_docs() {
    RUSTDOCFLAGS='-D warnings' run cargo doc --workspace --no-deps
    RUSTDOCFLAGS='-D warnings' run cargo doc --workspace --no-deps --all-features
}

# Builds every package as it would be published, in the order of their dependencies.
step_package() {
    run cargo publish --workspace --dry-run
}

# Models of the lock-free structures: every interleaving and every ordering that the memory model allows.
step_loom() {
    # Its own folder: other flags rebuild everything.
    CARGO_TARGET_DIR=$CARGO_TARGET_DIR/loom RUSTFLAGS='--cfg loom' run cargo test --release -p farcall-softnic --lib
    # This model takes only plain data from its crate, which needs no other flags then.
    run cargo test --release -p farcall-rpc --lib sleep_model
}

# Worlds in virtual time: so many seeds from a fixed one on, so that what is refused here is refused everywhere. To look
# elsewhere, and for longer: FARCALL_SIM_SECONDS=900 without a first seed, which the day chooses then. A failure prints the
# command that repeats it. Some fifteen minutes of worlds, on two processors in eight.
step_sim() {
    FARCALL_SIM_FIRST=${SIM_FIRST:-20778000000} FARCALL_SIM_SEEDS=${SIM_SEEDS:-37500} \
        run cargo test --release -p farcall-sim --test seeds -- --nocapture
}

# Processes killed and stopped at their n-th store to shared memory, for every n, and at random under load. Servers killed,
# stopped and cut off while calls are under way.
step_kill() {
    run cargo test --release -p farcall-softnic --features store-hook --test store_hook --test store_hook_srq \
        --test store_hook_unreliable --test store_hook_private --test kill_random --test kill_random_unreliable --test process
    run cargo test --release -p farcall-rpc --test kill
}

# A million rounds of falling asleep and being woken, a million messages through one ring: nothing lost, nothing slept
# through. Quick in debug, complete in release.
step_rounds() {
    run cargo test --release -p farcall-softnic --test events --test operations
    run cargo test --release -p farcall-rpc --test rounds -- --nocapture
}

# README's command for the main job: it fails if anything was wrong, not if this machine is slow.
step_main_job() {
    run cargo run --release -- kv bench
}

# A real file, Debian's word list, loaded and read back by an ordinary memcached client over TCP and the Unix socket.
step_words() {
    need wamerican python3-pymemcache
    local farcall=$CARGO_TARGET_DIR/release/farcall words=$scratch/words.tsv socket=$scratch/kv.sock tcp rpc pid
    run cargo build --release
    awk '{ print $0 "\t" NR }' /usr/share/dict/words >"$words"
    printf '%d words\n' "$(wc -l <"$words")"
    "$farcall" --json kv serve --tcp 127.0.0.1:0 --rpc 127.0.0.1:0 --unix "$socket" --partitions 2 </dev/null >"$scratch/ready.json" &
    pid=$!
    until [[ -s $scratch/ready.json ]]; do
        kill -0 "$pid" || return 1
        sleep 0.1
    done
    tcp=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["tcp"][0])' "$scratch/ready.json")
    rpc=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["rpc"])' "$scratch/ready.json")
    run "$farcall" kv load "$words" --server "unix:$socket"
    run "$farcall" kv load "$words" --server "rpc:$rpc"
    # Debian's modules belong to Debian's interpreter, which need not be the first in the path.
    run /usr/bin/python3 .ci/read_back.py "$words" "$tcp" "unix:$socket"
    run "$farcall" stats "$pid"
    run kill -TERM "$pid"
    run wait "$pid"
    run test ! -e "$socket"
}

# A minute of fuzzing for each target, from the committed seeds.
step_fuzz() {
    command -v cargo-fuzz >/dev/null || run cargo install cargo-fuzz --locked
    run cargo +nightly fuzz build
    local target
    for target in $(cargo +nightly fuzz list); do
        mkdir -p "fuzz/corpus/$target"
        run cargo +nightly fuzz run "$target" "fuzz/corpus/$target" $([[ -d fuzz/seeds/$target ]] && echo "fuzz/seeds/$target") \
            -- -max_total_time="${FUZZ_SECONDS:-60}" -verbosity=0 -print_final_stats=1
    done
}

# The drop-in libibverbs under AddressSanitizer: random sequences of calls, and mistakes that must be reported. Loaded by
# name, the library finds the sanitizer in the program, which has to export it. Leaks are not looked for: some tests end
# without giving anything back.
step_asan() {
    CARGO_TARGET_DIR=$CARGO_TARGET_DIR/asan FARCALL_ABI_SANITIZER=address FARCALL_ABI_SEQUENCES=${ASAN_SEQUENCES:-1000} \
        ASAN_OPTIONS=detect_leaks=0 RUSTFLAGS='-Zsanitizer=address -Clink-arg=-Wl,--export-dynamic-symbol=__asan_*' \
        run cargo +nightly test --target "$(rustc -vV | sed -n 's/^host: //p')" -p farcall-ibverbs-abi --test c_abi
}

# ThreadSanitizer, with a standard library built alike. It knows what the threads of one process order by atomics, locks and
# fences, by address: memory that is mapped twice, or ordered by the kernel, is beyond it (the models of step_loom are for that).
step_tsan() {
    local sources host
    sources=$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library
    if [[ ! -d $sources ]] && ! run rustup component add rust-src --toolchain nightly; then
        printf 'SKIPPED: the sources of the standard library cannot be had here\n'
        return
    fi
    host=$(rustc -vV | sed -n 's/^host: //p')
    # The drop-in library finds the sanitizer in the program, as in step_asan.
    local -x RUSTFLAGS='-Zsanitizer=thread -Clink-arg=-Wl,--export-dynamic-symbol=__tsan_*'
    CARGO_TARGET_DIR=$CARGO_TARGET_DIR/tsan FARCALL_ABI_SANITIZER=thread \
        run cargo +nightly test -Zbuild-std --target "$host" -p farcall-ibverbs-abi --test c_abi -- threads sanitizer
    CARGO_TARGET_DIR=$CARGO_TARGET_DIR/tsan \
        run cargo +nightly test -Zbuild-std --target "$host" -p farcall-softnic --lib --test events
}

# Asks the machine for huge pages, if it has none and allows that, and prints how many it had: tests use them if they are there.
reserve_huge_pages() {
    local file=/proc/sys/vm/nr_hugepages had
    had=$(<"$file")
    [[ $had -gt 0 || ! -w $file ]] || echo 16 2>/dev/null >"$file" || true
    printf '%s\n' "$had"
}

# The conformance suite of verbs, wherever the two ends live.
step_conform() {
    need libibverbs1
    local huge_pages
    huge_pages=$(reserve_huge_pages)
    run cargo build --release --workspace
    local sides
    for sides in local processes containers simulated; do
        run "$CARGO_TARGET_DIR/release/farcall" conform --sides "$sides"
    done
    # Through libibverbs' C interface, which the drop-in library serves.
    run "$CARGO_TARGET_DIR/release/farcall" verbs run -- "$CARGO_TARGET_DIR/release/farcall" conform --provider ibv
    # The other user must reach the program; both are in one group.
    install -m 755 "$CARGO_TARGET_DIR/release/farcall" "$scratch/conform-as-others"
    chmod 711 "$scratch"
    FARCALL_GROUP=4242 run setpriv --groups 0,4242 "$scratch/conform-as-others" conform --sides users --other-user 4242
    run cargo test -p farcall-softnic --test private_memory any_memory_can_be_registered -- --nocapture
    [[ ! -w /proc/sys/vm/nr_hugepages ]] || echo "$huge_pages" 2>/dev/null >/proc/sys/vm/nr_hugepages || true
}

# docs/rdma-in-ci.md promises which C library the drop-in libraries load with, wherever they are built.
asks_for_no_newer_glibc() {
    local newest
    newest=$(objdump -T "$@" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
    printf '%s\n' "$newest"
    [[ -n $newest && $(printf '%s\n' "$newest" GLIBC_2.34 | sort -V | tail -n 1) == GLIBC_2.34 ]]
}

# What users copy from docs/rdma-in-ci.md: an installation, and foreign programs in it, for a user with nothing of his own.
step_recipe() {
    need ibverbs-utils perftest rdmacm-utils ucx-utils
    run .github/actions/farcall-verbs/install.sh "$scratch/opt"
    run asks_for_no_newer_glibc "$scratch"/opt/lib/farcall/*.so.1
    chmod 711 "$scratch"
    install -m 755 .github/workflows/two-ends.sh "$scratch/two-ends"
    run setpriv --reuid 65534 --regid 65534 --clear-groups env -i "PATH=$scratch/opt/bin:$PATH" "$scratch/two-ends"
}

# Small mistakes on purpose; a test notices each.
step_mutations() {
    run python3 .ci/mutations.py
}

# Over the kernel's own software RNIC, through the system's libibverbs: a stock kernel in QEMU.
step_guest() {
    need qemu-system-x86 busybox-static cpio xz-utils kmod iproute2 ibverbs-providers
    run cargo build --release
    run bash .ci/guest/qemu bash "$PWD/.ci/guest/checks" "$CARGO_TARGET_DIR/release/farcall"
    # The same under a user-mode kernel, where somebody has built one (.ci/guest/uml_build).
    if [[ -x ${XDG_CACHE_HOME:-$HOME/.cache}/farcall-guest/linux-uml ]]; then
        run bash .ci/guest/uml bash "$PWD/.ci/guest/checks" "$CARGO_TARGET_DIR/release/farcall"
    fi
}

# Beside UCX over shared memory. Printed, not judged: how fast a shared machine is, and whether UCX finds two quiet cores
# to spin on, says nothing about a change.
step_ucx() {
    need ucx-utils
    run cargo build --release
    run timeout 400 "$CARGO_TARGET_DIR/release/farcall" perf all --transport rc --size 8,64,1048576 --against ucx --repetitions 3 ||
        printf 'No comparison on this machine (exit %d; 124: it took too long).\n' $?
}
