# What the guest lanes share. Sourced by qemu and uml, which set `here`.
# shellcheck shell=bash disable=SC2034,SC2154

cache=${XDG_CACHE_HOME:-$HOME/.cache}/farcall-guest
# The way in and out: `command` is read by the guest, `exit` is written by it.
share=$(mktemp -d)
trap 'rm -rf "$share"' EXIT

# Prints an initramfs: busybox, init, and what is in the folder $1.
make_initrd() {
    mkdir -p "$1"/{bin,dev,proc,sys,share,host}
    cp "$(command -v busybox)" "$1/bin/busybox"
    install -m 755 "$here/init" "$1/init"
    (cd "$1" && find . | cpio --quiet -o -H newc -R 0:0 | gzip -1)
}

# Boots a machine, whose command line is on the standard input (words as in the shell), to run the command given as
# arguments; returns the command's exit code.
boot() {
    local machine
    eval "machine=($(tr '\n' ' '))"
    printf 'cd %q || exit\nexec%s\n' "$PWD" "$(printf ' %q' "$@")" >"$share/command"
    head -c 64 /dev/urandom >"$share/seed"
    timeout --foreground "${GUEST_SECONDS:-900}" "${machine[@]}" </dev/null || return
    if [[ ! -s $share/exit ]]; then
        printf 'The guest ended without running the command; its last words are above.\n' >&2
        return 1
    fi
    return "$(<"$share/exit")"
}
