"""Makes small mistakes in the product, one at a time, and shows that a test notices each.

    python3 .ci/mutate.py [NAME...]        all mutations, or those named
    python3 .ci/mutate.py --list           names them, and checks that each patch still applies
    python3 .ci/mutate.py --changed BASE   those of files that changed since the commit BASE, changed functions first

    --part K/N      the Kth of N parts of them, in the order of their checks
    --seconds N     begins no further mutation after so many seconds, and names those that are left

A mutation is a file `.ci/mutations/*/NAME.patch`: a line `Check: ` with the command that must fail because of it, then a
patch (`git diff`). It is noticed if the check passes without the patch, the patched tests compile, and the check then
fails. The clone must be clean: its sources are changed and restored. Seeds of tests are always the same.
"""

import argparse
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A check that takes longer, and longer than so many times its duration without the mutation, hangs: it noticed.
CHECK_SECONDS, CHECK_TIMES, UNCHANGED_SECONDS = 300, 4, 1200
HUNK = re.compile(r"^(?:\+\+\+ b/(.*)|@@ .* @@ ?(.*))$", re.MULTILINE)


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


def functions_of(diff):
    """The pairs of a file and a function that the hunks of a diff name."""
    found, file = set(), None
    for new_file, function in HUNK.findall(diff):
        file = new_file or file
        if not new_file:
            found.add((file, function))
    return found


class Mutation:
    def __init__(self, path):
        self.path, self.name = path, path.stem
        check, _, patch = path.read_text().partition("\n")
        self.check = check.removeprefix("Check: ")
        self.functions = functions_of(patch)

    def apply(self, *options):
        return git("apply", "-C2", "--whitespace=nowarn", *options, str(self.path)).stderr


def run(check, seconds=None, build_only=False):
    words = shlex.split(check)
    count = words.index("cargo")
    environment = {**os.environ, **dict(word.split("=", 1) for word in words[:count])}
    target = environment.setdefault("CARGO_TARGET_DIR", str(ROOT / "target"))
    if "--cfg loom" in environment.get("RUSTFLAGS", ""):
        environment["CARGO_TARGET_DIR"] = os.path.join(target, "loom")
    command = [*words[count:count + 2], *(["--no-run"] if build_only else []), *words[count + 2:]]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=seconds)
    except BaseException as ended:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(ended, subprocess.TimeoutExpired):
            return False, "it hangs"
        raise
    return process.returncode == 0, output


def seconds_for(check):
    """For how long a check may run with a mutation; 0 if it fails without one, or runs no test."""
    compiles, output = run(check, build_only=True)
    began = time.monotonic()
    passes, output = run(check, UNCHANGED_SECONDS) if compiles else (False, output)
    if not passes or not re.search(r"^running [1-9]", output, re.MULTILINE):
        print(f"{check}\n{'runs no test' if passes else 'fails without any mutation'}:\n{output[-4000:]}", flush=True)
        return 0
    return max(CHECK_SECONDS, CHECK_TIMES * (time.monotonic() - began))


def is_noticed(mutation, seconds):
    mutation.apply()
    try:
        compiles, output = run(mutation.check, build_only=True)
        passes, _ = run(mutation.check, seconds) if compiles else (True, "")
    finally:
        mutation.apply("--reverse")
    if not compiles:
        print(f"{mutation.name} does not compile, so no test can notice it:\n{output[-4000:]}", flush=True)
    return not passes


def chosen(mutations, options):
    if unknown := set(options.names) - {mutation.name for mutation in mutations}:
        sys.exit(f"no such mutation: {', '.join(sorted(unknown))}")
    found = sorted(mutations, key=lambda mutation: mutation.check)
    if options.names:
        found = [mutation for mutation in found if mutation.name in options.names]
    if options.changed:
        changed = functions_of(git("diff", "--unified=0", options.changed, "HEAD", "--", "*.rs").stdout)
        files = {file for file, _ in changed}
        found = [mutation for mutation in found if any(file in files for file, _ in mutation.functions)]
        found.sort(key=lambda mutation: not mutation.functions & changed)
    if options.part:
        part, parts = map(int, options.part.split("/"))
        found = found[len(found) * (part - 1) // parts:len(found) * part // parts]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    for option, kind in {"--changed": str, "--part": str, "--seconds": int}.items():
        parser.add_argument(option, type=kind)
    options = parser.parse_args()
    os.environ.update(PROPTEST_DISABLE_FAILURE_PERSISTENCE="1", PROPTEST_RNG_SEED="1", FARCALL_TEST_SEED="1")
    mutations = [Mutation(path) for path in sorted(ROOT.glob(".ci/mutations/*/*.patch"))]
    if stale := [f"{mutation.name}: {why}" for mutation in mutations if (why := mutation.apply("--check"))]:
        sys.exit("\n".join([*stale, "The source has changed, so these patches must change, too."]))
    selected = chosen(mutations, options)
    if options.list:
        return print(*(f"{mutation.name}  ({mutation.check})" for mutation in selected), sep="\n")
    if git("status", "--porcelain").stdout:
        sys.exit("mutations change the sources of this clone: commit first")
    began, limits, survived, left = time.monotonic(), {}, [], []
    for mutation in selected:
        if options.seconds and time.monotonic() - began > options.seconds:
            left.append(mutation.name)
            continue
        if mutation.check not in limits:
            limits[mutation.check] = seconds_for(mutation.check)
        noticed = limits[mutation.check] and is_noticed(mutation, limits[mutation.check])
        print(f"{'noticed' if noticed else 'NOT NOTICED':12} {mutation.name}: {mutation.check}", flush=True)
        survived.extend([] if noticed else [mutation.name])
    print(f"Not tried, for lack of time: {', '.join(left) or 'none'}")
    if survived:
        sys.exit(f"not noticed: {', '.join(survived)}")
    print(f"All {len(selected) - len(left)} mutations that were tried are noticed, of {len(mutations)}.")


if __name__ == "__main__":
    main()
