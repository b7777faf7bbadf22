# What changed, for the steps that choose by it. Sourced by .ci/run.
# shellcheck shell=bash

# A day's work, if nothing says where the last accepted change ends.
window_seconds=86400

# Sets `base`, an ancestor of HEAD or empty, and `base_reason`. Runs in the repository, which knows more than its clone.
choose_base() {
    local name commit committed
    base='' base_reason='nothing older is known: the default set'
    for name in "${FARCALL_CI_BASE:-}" origin/main main; do
        # A push names the commit before it, which is zeros for a new branch.
        commit=$(git rev-parse --quiet --verify "$name^{commit}" 2>/dev/null) || continue
        commit=$(git merge-base HEAD "$commit" 2>/dev/null) || continue
        [[ $commit != "$(git rev-parse HEAD)" ]] || continue
        base=$commit base_reason="where HEAD leaves $name"
        return
    done
    if name=$(git describe --tags --abbrev=0 'HEAD^' 2>/dev/null); then
        base=$(git rev-parse "$name^{commit}") base_reason="the last tag, $name"
        return
    fi
    committed=$(git show --no-patch --format=%ct HEAD)
    commit=$(git rev-list --max-count=1 --before=$((committed - window_seconds)) HEAD)
    if [[ -n $commit ]]; then
        base=$commit base_reason='the last commit that is a day older than HEAD'
    fi
}

# Says what the choice is made by.
print_base() {
    if [[ -n $base ]]; then
        printf 'Changes since %s: %s; %d files.\n' "${base:0:12}" "$base_reason" \
            "$(git diff --name-only "$base" HEAD | wc -l)"
    else
        printf 'No base: %s.\n' "$base_reason"
    fi
}

# Whether one of the paths changed since the base.
has_changed() {
    ! git diff --quiet "$base" HEAD -- "$@"
}
