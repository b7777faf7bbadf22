#!/bin/bash
# Runs programs against themselves: a server, and as soon as it listens its client. An ordinary user's work: no root,
# no module.
set -euo pipefail

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# both SERVER... -- CLIENT...: the two ends of one program; both must succeed.
both() {
    local server=() end
    while [[ $1 != -- ]]; do
        server+=("$1")
        shift
    done
    shift
    printf '$ %s\n' "$*"
    timeout 120 farcall verbs run -- "${server[@]}" >"$logs/server" 2>&1 &
    end=$!
    # Clients that come too early are refused.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        sleep 0.5
        if timeout 120 farcall verbs run -- "$@" >"$logs/client" 2>&1; then
            wait "$end"
            tail -n 3 "$logs/client"
            return
        fi
        kill -0 "$end" 2>/dev/null || break
    done
    cat "$logs/server" "$logs/client"
    return 1
}

both ibv_rc_pingpong -g 0 -c -- ibv_rc_pingpong -g 0 -c 127.0.0.1
both ib_write_bw -F -n 1000 -- ib_write_bw -F -n 1000 127.0.0.1
both ib_send_bw -F -n 1000 -c UD -- ib_send_bw -F -n 1000 -c UD 127.0.0.1
both rping -s -a 127.0.0.1 -C 10 -- rping -c -a 127.0.0.1 -C 10 -V
export UCX_TLS=rc_v,ud_v
both ucx_perftest -t tag_lat -n 1000 -w 100 -- ucx_perftest -t tag_lat -n 1000 -w 100 127.0.0.1
