# The steps of .ci/run: one function each, run in a subshell inside the clone. Sourced.
# shellcheck shell=bash disable=SC2154  # .ci/run and change.sh set scratch, installs, base and base_reason.

export CARGO_TERM_COLOR=never RUST_BACKTRACE=1 DEBIAN_FRONTEND=noninteractive PYTHONDONTWRITEBYTECODE=1

# The profile of tests that need an optimised program: as `release`, without what takes long to build. See Cargo.toml.
profile=release-test

# Prints a command and runs it, without input.
run() {
    printf '$ %s\n' "$*"
    "$@" </dev/null
}

# Sets `missing` to those of the Debian packages that are not installed.
find_missing() {
    local package
    missing=()
    for package; do
        dpkg-query --show --showformat='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing+=("$package")
    done
}

# Installs missing Debian packages without which a step cannot run.
need() {
    local missing as_root=()
    find_missing "$@"
    [[ ${#missing[@]} -gt 0 ]] || return 0
    if [[ $installs != yes ]]; then
        printf 'Missing packages, which bash .ci/run --install installs: %s\n' "${missing[*]}" >&2
        return 1
    fi
    if [[ $(id -u) -ne 0 ]]; then
        sudo -n true 2>/dev/null || {
            printf 'Missing packages, and no right to install them: apt-get install %s\n' "${missing[*]}" >&2
            return 1
        }
        as_root=(sudo -n)
    fi
    run "${as_root[@]}" apt-get update -qq
    run "${as_root[@]}" apt-get install -qq -y --no-install-recommends "${missing[@]}"
}

# Installs Debian packages without which a step tests less. Without permission to install, prints what is missing.
want() {
    local missing
    find_missing "$@"
    if [[ ${#missing[@]} -gt 0 && $installs != yes ]]; then
        printf 'Some tests are skipped: bash .ci/run --install installs what they need: %s\n' "${missing[*]}"
        return 0
    fi
    need "$@"
}

need_nightly() {
    rustc +nightly --version >/dev/null 2>&1 || run rustup toolchain install nightly --profile minimal --no-self-update
}

# The repository speaks of the project alone: no path of anybody's machine, no dependency from elsewhere. Its scripts
# parse.
step_guard() {
    local found script
    if found=$(git grep -nIE '(^|[^A-Za-z0-9_.$}-])/(root|home|work|Users)/' -- . ':!.ci/steps.sh'); then
        printf '%s\n' "$found" "Paths of a developer's machine: name them relatively."
        return 1
    fi
    if found=$(git grep -n '^source = ' -- '*Cargo.lock' |
        grep -vF 'registry+https://github.com/rust-lang/crates.io-index'); then
        printf '%s\n' "$found" 'Dependencies from elsewhere than crates.io cannot be published.'
        return 1
    fi
    for script in .ci/run .ci/*.sh .ci/guest/{qemu,uml,uml_build,lane.sh,checks,between,between_here,between_checks,rates} .github/workflows/two-ends.sh; do
        run bash -n "$script"
    done
    for script in .ci/guest/init .github/actions/farcall-verbs/install.sh packaging/build.sh packaging/mount/*; do
        run sh -n "$script"
    done
    # Parsed only: compiled, they would leave files in the clone that packaging then refuses.
    for script in .ci/*.py; do
        run python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$script"
    done
    run python3 .ci/mutate.py --list
    if ! grep -qF "lane: [$(printf '%s, ' "${lane_names[@]}" | sed 's/, $//')]" .github/workflows/ci.yml; then
        printf 'The lanes of .github/workflows/ci.yml are not those of .ci/run: %s\n' "${lane_names[*]}"
        return 1
    fi
}

# Comments of product code, and lengths of names.
step_prose() {
    run python3 .ci/prose.py
}

# Circles of imports between the files of a package, whose number only falls.
step_circles() {
    run python3 .ci/circles.py
}

step_format() {
    cargo fmt --version >/dev/null 2>&1 || run rustup component add rustfmt
    run cargo fmt --all --check
}

# README's command for the tests. With the C header, layouts of libibverbs' structures are compared, too.
step_test() {
    # What tests compare with and run; without it they say that they are skipped.
    want libibverbs-dev ibverbs-utils perftest ucx-utils python3-pyverbs librdmacm-dev rdmacm-utils libfabric-bin \
        redis-server memcached nginx-light curl python3-grpcio etcd-server etcd-client \
        iproute2 prometheus
    run cargo test --workspace --no-fail-fast
}

# Fewer features than the tests have, which switch all of them on.
step_features() {
    cargo clippy --version >/dev/null 2>&1 || run rustup component add clippy
    run cargo clippy -p farcall-cli -- -D warnings
    run cargo clippy -p farcall-rpc -p farcall-drive -p farcall-memory -- -D warnings
    run cargo clippy -p farcall-kv --no-default-features -- -D warnings
    run cargo clippy -p farcall-bench --no-default-features -- -D warnings
    run cargo clippy -p farcall --no-default-features -- -D warnings
    local feature
    for feature in rpc service tokio kv kv-server stream grpc softnic ibv select binding sim stats; do
        run cargo clippy -p farcall --no-default-features --features "$feature" -- -D warnings
    done
}

step_clippy() {
    cargo clippy --version >/dev/null 2>&1 || run rustup component add clippy
    run cargo clippy --workspace --all-targets --all-features -- -D warnings
}

step_docs() {
    RUSTDOCFLAGS='-D warnings' run cargo doc --workspace --no-deps --all-features
}

step_docs_of_default() {
    RUSTDOCFLAGS='-D warnings' run cargo doc --workspace --no-deps
}

# Models of the lock-free structures: every interleaving and every ordering that the memory model allows. step_test
# runs the models that need no other flags.
step_loom() {
    # Its own folder: other flags rebuild everything.
    CARGO_TARGET_DIR=$CARGO_TARGET_DIR/loom RUSTFLAGS='--cfg loom' \
        run cargo test --profile "$profile" -p farcall-shm -p farcall-io --lib
    # The library under programs brings loom's memory itself.
    test_files --profile "$profile" -- ring_model
}

# The tests of files in any package's `tests`, with the features that the whole workspace gives their dependencies, so
# that they are built once for all steps: `test_files OPTION... -- FILE...`, without what a test is told.
test_files() {
    local options=()
    while [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift
    run cargo test --workspace "${options[@]}" "${@/#/--test=}"
}

deaths_at_stores=(store_hook store_hook_stream store_hook_preload)

# Processes killed and stopped at their n-th store to shared memory, for every n. Deaths at random are part of
# step_test.
step_kill() {
    run cargo test --workspace --profile "$profile" "${deaths_at_stores[@]/#/--test=}" -- --ignored
}

# The same at every third store.
step_kill_some() {
    FARCALL_TEST_STORE_STEP=3 step_kill
}

# Every store, and many deaths at random under load; servers killed, stopped and cut off while calls are under way.
step_kill_at_length() {
    step_kill
    test_files --profile "$profile" -- kill_random kill
    run cargo test --workspace --profile "$profile" --test=two_processes -- process::
}

# A million rounds of falling asleep and being woken, a million messages through one ring: nothing lost, nothing slept
# through; what happens only when an owner polls quickly. Quick in debug, complete optimised.
step_rounds() {
    test_files --profile "$profile" -- rounds
    run cargo test --workspace --profile "$profile" --test=one_process --test=roce_port -- \
        events:: operations:: kept_acknowledgements::
    # The first hung once, the others failed once; they are repeated here until the causes are found.
    local attempt
    for attempt in {1..50}; do
        run cargo test --quiet --workspace --profile "$profile" --test=region -- --ignored restores_a_page
        run cargo test --quiet --workspace --profile "$profile" --test=deferred -- --ignored
    done
}

# Simulates at most $1 seeds of each scenario for at most $2 seconds. The first seed is fixed, so that a change that
# fails here fails everywhere. Prints the number of seeds. A failure prints the command that repeats it.
worlds() {
    FARCALL_SIM_FIRST=20778000000 FARCALL_SIM_SEEDS=$1 FARCALL_SIM_SECONDS=$2 \
        run cargo test --workspace --profile "$profile" --test=seeds -- --nocapture
}

step_seeds() {
    worlds 1000 180
}

# More than an hour of processor time; to look elsewhere, run it without FARCALL_SIM_FIRST: the day chooses then.
step_seeds_at_length() {
    worlds 12000 7200
}

# README's command for the main job: it fails if anything was wrong, not if this machine is slow.
step_main_job() {
    run cargo run --release -- kv bench
    # A release build has no store hook (fabric/shm/src/store_hook.rs), whose counter is this symbol.
    run grep -q 'static LEFT' fabric/shm/src/store_hook.rs
    if nm "$CARGO_TARGET_DIR/release/farcall" | grep 'farcall_shm.*store_hook.*LEFT'; then return 1; fi
}

# A real file, Debian's word list, loaded and read back by an ordinary memcached client over TCP and the Unix socket.
step_words() {
    need wamerican python3-pymemcache
    local farcall=$CARGO_TARGET_DIR/release/farcall words=$scratch/words.tsv socket=$scratch/kv.sock tcp rpc pid
    run cargo build --release
    awk '{ print $0 "\t" NR }' /usr/share/dict/words >"$words"
    printf '%d words\n' "$(wc -l <"$words")"
    "$farcall" --json kv serve --tcp 127.0.0.1:0 --rpc 127.0.0.1:0 --unix "$socket" --partitions 2 \
        </dev/null >"$scratch/ready.json" &
    pid=$!
    # shellcheck disable=SC2064  # This server, whatever the variable holds then.
    trap "kill $pid 2>/dev/null || true" EXIT
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

# The own suites of memcached's clients, and memcached's own tests, against our server. A test that does not pass, and
# is not expected in .ci/clients.expected, is red.
step_clients() {
    need python3-venv perl
    command -v go >/dev/null || need golang-go
    run cargo build --release
    run python3 .ci/clients.py "$CARGO_TARGET_DIR/release/farcall" "$scratch/clients"
}

# The C library as it is installed, Go over it, and the Python wheel, against servers in Rust; type hints against what
# the wheel has.
step_bindings() {
    need python3-venv pkg-config valgrind man-db
    command -v go >/dev/null || need golang-go
    local venv=$scratch/venv servers=$CARGO_TARGET_DIR/debug/examples/servers program
    run cargo test -p farcall-capi
    run packaging/install-c.sh "$scratch/c"
    for program in kv rpc stream; do
        # Flags, split on purpose.
        # shellcheck disable=SC2046
        run cc -o "$scratch/$program" "bindings/capi/examples/$program.c" \
            $(PKG_CONFIG_PATH=$scratch/c/lib/pkgconfig pkg-config --cflags --libs farcall)
    done
    LD_LIBRARY_PATH=$scratch/c/lib run "$scratch/rpc"
    PKG_CONFIG_PATH=$scratch/c/lib/pkgconfig LD_LIBRARY_PATH=$scratch/c/lib run bash -c "cd bindings/go && go test -count=1 -v ."
    run cargo build -p farcall --example servers
    run python3 -m venv "$venv"
    run "$venv/bin/pip" install --quiet maturin mypy
    run "$venv/bin/maturin" build --locked --manifest-path bindings/python/Cargo.toml --out "$scratch/wheels"
    run "$venv/bin/pip" install --quiet "$scratch"/wheels/farcall-*.whl
    FARCALL_SERVERS=$servers run "$venv/bin/python" -m unittest discover -v -s bindings/python/tests
    run "$venv/bin/python" -m mypy.stubtest farcall
}

# TensorFlow, unmodified, with a parameter server: over TCP and under `farcall run` it trains the same.
step_tensorflow() {
    need python3-venv
    local venv=$scratch/tensorflow
    run cargo build --release --features full -p farcall-cli -p farcall-preload
    run python3 -m venv "$venv"
    run "$venv/bin/pip" install --quiet tensorflow-cpu
    FARCALL_PYTHON=$venv/bin/python run "$CARGO_TARGET_DIR/release/farcall" figures run D.19 --json \
        --output "$scratch/tensorflow.json"
    run python3 -c 'import json, sys
results = json.load(open(sys.argv[1]))
[experiment] = results["experiments"]
assert not experiment["problems"], experiment["problems"]
curves = {curve["name"]: [point["y"]["median"] for point in curve["points"]] for curve in experiment["measured"]}
assert len(curves) == 2 and all(len(rates) == 3 and min(rates) > 0 for rates in curves.values()), curves
print(curves)' "$scratch/tensorflow.json"
}

# Attacks by another user of the machine: the tests become user 65534, who must reach the program.
step_hostile_users() {
    if ! setpriv --reuid 65534 --regid 65534 --clear-groups true 2>/dev/null; then
        printf 'SKIPPED: attacks by another user need the right to become one (run this as root)\n'
        return
    fi
    run cargo build -p farcall-cli --features full
    chmod 711 "$scratch"
    install -m 755 "$CARGO_TARGET_DIR/debug/farcall" "$scratch/farcall-attacked"
    FARCALL_TEST_BINARY=$scratch/farcall-attacked run cargo test --test hostile -- --ignored --skip long::
}

# Programs whose pages are swapped to memory nodes, one after another, and deaths of all who serve them. They say that
# they are skipped where nobody may swap. What is left of one that failed is undone.
step_page() {
    run cargo test -p farcall-cli --features full --test page -- --ignored --nocapture --test-threads=1 || {
        run "$CARGO_TARGET_DIR/debug/farcall" page cleanup
        return 1
    }
}

# A hundred rounds in which nodes, a witness, workers, supervisors and mounts are killed and stopped at random. What
# files had when they were synced is there, or the outcome is one that docs/semantics/memory-nodes.md lists.
step_kill_rounds() {
    FARCALL_KILL_ROUNDS=${FARCALL_KILL_ROUNDS:-25} \
        run cargo test -p farcall-cli --features full --test kill_rounds -- --ignored --nocapture --test-threads=1
}

# Databases and machine learning under `farcall page`, and records through a file on `farcall mount`: they have what was
# written, and learn the same. Where nobody may swap or mount, the notes say so.
step_paged_figures() {
    need python3-venv redis-server
    local venv=$scratch/numpy
    run cargo build --release --features full -p farcall-cli
    run python3 -m venv "$venv"
    run "$venv/bin/pip" install --quiet numpy
    FARCALL_PYTHON=$venv/bin/python run "$CARGO_TARGET_DIR/release/farcall" figures run C.10 C.11 C.12 --json \
        --repetitions 1 --output "$scratch/paged.json"
    run python3 -c 'import json, sys
for experiment in json.load(open(sys.argv[1]))["experiments"]:
    assert not experiment["problems"], experiment["problems"]
    assert experiment["measured"], experiment
    print(experiment["id"], experiment["notes"])' "$scratch/paged.json"
}

# Suites of others on a mounted file system. Where nobody may mount, they say that they are skipped.
step_file_suites() {
    need dbench stress-ng git
    run cargo install --quiet --locked --root "$scratch/suites" pjdfstest@0.2.2
    PATH=$scratch/suites/bin:$PATH run cargo test -p farcall-cli --features full --test suites -- --ignored \
        --nocapture --test-threads=1
}

# Attacks and shortages of so many seconds each, on an optimised server.
step_hostile_at_length() {
    FARCALL_HOSTILE_SECONDS=${FARCALL_HOSTILE_SECONDS:-900} \
        run cargo test --workspace --profile "$profile" --test hostile -- --ignored --nocapture --test-threads=1 \
        long::shortage long::traffic
}

# Random traffic of socket programs in shared memory, for so many seconds, a seed a round.
step_socket_programs() {
    need libgrpc-java libnetty-java libperfmark-java libgrpc++-dev g++ pkg-config
    command -v javac >/dev/null || need openjdk-17-jdk-headless
    if ! command -v npm >/dev/null; then need nodejs npm; fi
    run npm install --silent --no-fund --prefix "$scratch/node" @grpc/grpc-js
    NODE_PATH=$scratch/node/node_modules run cargo test -p farcall-preload --test preload -- --nocapture grpc
    FARCALL_SOCKET_SECONDS=${FARCALL_SOCKET_SECONDS:-600} FARCALL_SOCKET_SEEDS=${FARCALL_SOCKET_SEEDS:-100000} \
        run cargo test -p farcall-preload -- --ignored --nocapture
}

# Ten thousand idle streams. Servers that are killed, stopped, evict and expire for so many seconds, and a check of all
# answers.
step_soak() {
    run cargo test --workspace --profile "$profile" --test many -- --ignored --nocapture ten_thousand_idle_streams
    FARCALL_WATCH_SECONDS=750 run cargo test --workspace --profile "$profile" --test service -- --nocapture watched
    FARCALL_HOSTILE_SECONDS=${FARCALL_SOAK_SECONDS:-1800} \
        run cargo test --workspace --profile "$profile" --test hostile -- --ignored --nocapture long::soak
}

# Fuzz targets, one a line.
fuzz_targets() {
    sed -n 's/^name = "\(.*\)"/\1/p' fuzz/Cargo.toml | tail -n +2
}

# The crates whose functions a fuzz target calls, as paths.
crates_of_target() {
    grep -o 'farcall_[a-z]*' "fuzz/src/$1.rs" | sort -u | tr _ - | while read -r package; do
        sed -n "s|^$package = .*path = \"\([^\"]*\)\".*|\1|p" Cargo.toml
    done
}

# Random changes of the seeds, without a fuzzer's guidance, for the targets whose crates changed.
step_inputs() {
    local target chosen=() crates
    print_base
    for target in $(fuzz_targets); do
        mapfile -t crates < <(crates_of_target "$target")
        if [[ -z $base ]] ||
            has_changed "${crates[@]}" "fuzz/src/$target.rs" fuzz/src/tests.rs "fuzz/seeds/$target"; then
            chosen+=("$target")
        fi
    done
    printf 'Fuzz targets whose crate changed: %s\n' "${chosen[*]:-none}"
    [[ ${#chosen[@]} -gt 0 ]] || return 0
    run cargo test --workspace --no-run
    local program
    program=$(test_program farcall_fuzz)
    FARCALL_FUZZ_SECONDS=5 run "$program" --nocapture "${chosen[@]/#/tests::}"
}

# Prints where the unit tests of the crate $1 are, which were built for the whole workspace.
test_program() {
    cargo test --workspace --no-run --message-format=json 2>/dev/null </dev/null | python3 -c '
import json, sys
for line in sys.stdin:
    artifact = json.loads(line)
    if artifact.get("executable") and artifact["target"]["name"] == sys.argv[1] and artifact["profile"]["test"]:
        print(artifact["executable"])' "$1"
}

# A minute of fuzzing for each target, from the committed seeds.
step_fuzz() {
    need_nightly
    command -v cargo-fuzz >/dev/null || run cargo install cargo-fuzz --locked
    # Optimising across crates takes long and finds nothing.
    export CARGO_PROFILE_RELEASE_LTO=false CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
    run cargo +nightly fuzz build
    local target
    for target in $(fuzz_targets); do
        mkdir -p "fuzz/corpus/$target"
        run cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" \
            -- -max_total_time="${FUZZ_SECONDS:-60}" -verbosity=0 -print_final_stats=1
    done
}

# The drop-in libibverbs under AddressSanitizer: random sequences of calls, and mistakes that must be reported. Loaded
# by name, the library finds the sanitizer in the program, which has to export it. Leaks are not looked for: some
# tests end without giving anything back.
step_asan() {
    need_nightly
    CARGO_TARGET_DIR=$CARGO_TARGET_DIR/asan FARCALL_ABI_SANITIZER=address \
        FARCALL_ABI_SEQUENCES=${ASAN_SEQUENCES:-1000} ASAN_OPTIONS=detect_leaks=0 \
        RUSTFLAGS='-Zsanitizer=address -Clink-arg=-Wl,--export-dynamic-symbol=__asan_*' \
        run cargo +nightly test --target "$(host)" -p farcall-ibverbs --test c_abi
}

host() {
    rustc -vV | sed -n 's/^host: //p'
}

# ThreadSanitizer, with a standard library built alike. It knows what the threads of one process order by atomics,
# locks and fences, by address: memory that is mapped twice, or ordered by the kernel, is beyond it (the models of
# step_loom are for that).
step_tsan() {
    local sources
    need_nightly
    sources=$(rustc +nightly --print sysroot)/lib/rustlib/src/rust/library
    if [[ ! -d $sources ]] && ! run rustup component add rust-src --toolchain nightly; then
        printf 'SKIPPED: the sources of the standard library cannot be had here\n'
        return
    fi
    # The drop-in library finds the sanitizer in the program, as in step_asan.
    local -x RUSTFLAGS='-Zsanitizer=thread -Clink-arg=-Wl,--export-dynamic-symbol=__tsan_*'
    CARGO_TARGET_DIR=$CARGO_TARGET_DIR/tsan FARCALL_ABI_SANITIZER=thread \
        run cargo +nightly test -Zbuild-std --target "$(host)" -p farcall-ibverbs --test c_abi -- threads sanitizer
    CARGO_TARGET_DIR=$CARGO_TARGET_DIR/tsan \
        run cargo +nightly test -Zbuild-std --target "$(host)" -p farcall-softnic --lib
    CARGO_TARGET_DIR=$CARGO_TARGET_DIR/tsan \
        run cargo +nightly test -Zbuild-std --target "$(host)" -p farcall-softnic --test one_process -- events::
}

# The conformance suite of verbs on the software RNIC and in the simulator, with the program that step_test leaves.
step_conform() {
    run cargo test --workspace --no-run
    local sides
    for sides in local processes simulated; do
        run "$CARGO_TARGET_DIR/debug/farcall" conform --sides "$sides"
    done
}

# Asks the machine for huge pages, if it has none and allows that, and prints how many it had: tests use them if they
# are there.
reserve_huge_pages() {
    local file=/proc/sys/vm/nr_hugepages had
    had=$(<"$file")
    [[ $had -gt 0 || ! -w $file ]] || echo 16 2>/dev/null >"$file" || true
    printf '%s\n' "$had"
}

# The conformance suite wherever the two ends can live.
step_conform_everywhere() {
    need libibverbs1
    local huge_pages
    huge_pages=$(reserve_huge_pages)
    run cargo build --release -p farcall-cli -p farcall-ibverbs -p farcall-rdmacm --features full
    local sides
    for sides in local processes containers simulated; do
        run "$CARGO_TARGET_DIR/release/farcall" conform --sides "$sides"
    done
    # Over RoCEv2 between two networks: as it is, by IPv6, and with faults on the wire.
    need iproute2
    local suite family
    suite="ip netns exec \"\$NETWORK_A\" \"$CARGO_TARGET_DIR/release/farcall\" conform"
    suite+=' --other-end "ip netns exec $NETWORK_B" --filter "rc/*"'
    for family in 4 6; do
        NETWORK_FAMILY=$family FARCALL_TRANSPORT=roce run bash .ci/networks \
            bash -c "$suite --filter 'uc/*' --filter 'ud/*'"
    done
    FARCALL_TRANSPORT=roce FARCALL_WIRE_FAULTS=seed=1,loss=0.01,duplicate=0.01,reorder=0.01,corrupt=0.01 \
        run bash .ci/networks bash -c "$suite"
    # Calls and a store whose cable is pulled for longer than their clients try to connect.
    run cargo test --workspace --test cable -- --ignored --nocapture
    # Through libibverbs' C interface, which the drop-in library serves.
    run "$CARGO_TARGET_DIR/release/farcall" verbs run -- "$CARGO_TARGET_DIR/release/farcall" conform --provider ibv
    # The other user must reach the program; both are in one group.
    install -m 755 "$CARGO_TARGET_DIR/release/farcall" "$scratch/conform-as-others"
    chmod 711 "$scratch"
    install -d -m 2770 -g 4242 "$scratch/group"
    FARCALL_SOCKET_DIR="$scratch/group" FARCALL_GROUP=4242 \
        run setpriv --groups 0,4242 "$scratch/conform-as-others" conform --sides users --other-user 4242
    run cargo test -p farcall-softnic --test one_process any_memory_can_be_registered -- --nocapture
    [[ ! -w /proc/sys/vm/nr_hugepages ]] || echo "$huge_pages" 2>/dev/null >/proc/sys/vm/nr_hugepages || true
}

# Small mistakes on purpose; a test notices each. All together they would take longer than a lane should.
step_mutations_1() {
    run python3 .ci/mutate.py --part 1/3
}

step_mutations_2() {
    run python3 .ci/mutate.py --part 2/3
}

step_mutations_3() {
    run python3 .ci/mutate.py --part 3/3
}

# Those in functions of files that changed, as many as fit.
step_mutations_of_change() {
    print_base
    if [[ -n $base ]]; then
        run python3 .ci/mutate.py --seconds 150 --changed "$base"
    else
        run python3 .ci/mutate.py bounds-not-checked arming-without-its-fence told-before-it-landed
    fi
}

# Over the kernel's own software RNIC, through the system's libibverbs: a stock kernel in QEMU.
step_guest() {
    need qemu-system-x86 busybox-static cpio xz-utils kmod iproute2 ibverbs-providers ibverbs-utils
    run cargo build --release -p farcall-cli -p farcall-ibverbs -p farcall-rdmacm --features full
    GUEST_SECONDS=1800 run bash .ci/guest/qemu bash "$PWD/.ci/guest/checks" "$CARGO_TARGET_DIR/release/farcall"
    # Our RoCEv2 against the kernel's.
    run bash .ci/guest/between "$CARGO_TARGET_DIR/release/farcall"
    # The same under a user-mode kernel, where somebody has built one (.ci/guest/uml_build).
    if [[ -x ${XDG_CACHE_HOME:-$HOME/.cache}/farcall-guest/linux-uml ]]; then
        run bash .ci/guest/uml bash "$PWD/.ci/guest/checks" "$CARGO_TARGET_DIR/release/farcall"
    fi
}

# Beside UCX over shared memory. Printed, not judged: how fast a shared machine is, and whether UCX finds two quiet
# cores to spin on, says nothing about a change.
step_ucx() {
    need ucx-utils
    run cargo build --release --features full
    run timeout 400 "$CARGO_TARGET_DIR/release/farcall" bench verbs all --transport rc --size 8,64,1048576 --against ucx \
        --repetitions 3 ||
        printf 'No comparison on this machine (exit %d; 124: it took too long).\n' $?
}
