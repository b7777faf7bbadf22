"""Counts instructions per message of a program outside the workspace, with and without LTO (needs valgrind).

    python3 lab/bench/outside/instructions.py                   this tree
    python3 lab/bench/outside/instructions.py --against TREE    this tree and another checkout; fails if a count is 2 % higher

A count is the difference between a short and a long run, so that what happens once is left out.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
KINDS = {
    "send64": ["count_post_send", "count_post_recv", "count_poll_receiver", "count_poll_sender"],
    "write8": ["count_post_send", "count_poll_sender"],
    "read64": ["count_post_send", "count_poll_sender"],
    "faa8": ["count_post_send", "count_poll_sender"],
    "chain": ["count_post_send", "count_post_recv", "count_poll_receiver", "count_poll_sender"],
    "chain-write8": ["count_post_send", "count_poll_sender"],
    "empty": ["count_poll_empty"],
    "call": ["count_submit", "count_serve", "count_take"],
    "call-8-clients": ["count_submit", "count_serve", "count_take"],
    "call-batch": ["count_submit_batched", "count_serve", "count_take_batched"],
}
SHORT, LONG = 3200, 16000
PERCENT_MAX = 2.0


def build(tree, profile, folder):
    """Builds the program on the libraries of `tree`; returns the path of the binary."""
    package = folder / "package"
    if not package.exists():
        shutil.copytree(HERE / "src", package / "src")
        manifest = (HERE / "Cargo.toml").read_text().replace('"../../../', f'"{tree}/')
        (package / "Cargo.toml").write_text(manifest)
        # The versions of the workspace.
        shutil.copy(tree / "Cargo.lock", package)
    subprocess.run(
        ["cargo", "build", "-q", "--profile", profile], cwd=package, check=True,
        env={**os.environ, "CARGO_TARGET_DIR": str(folder / "target")},
    )
    return folder / "target" / profile / "farcall-outside"


def executed(binary, kind, count, folder):
    """Instructions executed inside each counted function."""
    out = folder / "callgrind.out"
    subprocess.run(
        ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}", binary, kind, str(count)], check=True)
    text = subprocess.run(
        ["callgrind_annotate", "--inclusive=yes", "--threshold=100", "--auto=no", out],
        check=True, capture_output=True, text=True).stdout
    found = {}
    for total, name in re.findall(r"^\s*([\d,]+) .*farcall_outside::(?:calls::)?(count_\w+)", text, re.MULTILINE):
        # What is inlined from other files has lines of its own.
        found[name] = max(found.get(name, 0), int(total.replace(",", "")))
    return found


def per_message(tree, scratch):
    """Instructions per message by profile, kind and function."""
    folder = scratch / re.sub(r"\W", "_", str(tree))
    folder.mkdir(parents=True, exist_ok=True)
    counts = {}
    for profile in ("release", "lto"):
        binary = build(tree, profile, folder)
        for kind, functions in KINDS.items():
            short, long = (executed(binary, kind, count, folder) for count in (SHORT, LONG))
            for function in functions:
                counts[profile, kind, function] = (long[function] - short[function]) / (LONG - SHORT)
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=pathlib.Path, metavar="TREE", help="another checkout, counted first")
    parser.add_argument("--scratch", type=pathlib.Path, help="keeps what was built in this folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = (arguments.scratch or pathlib.Path(temporary)).resolve()
        before = per_message(arguments.against.resolve(), scratch) if arguments.against else {}
        after = per_message(ROOT, scratch)
    is_worse = False
    print(f"{'profile':8} {'messages':13} {'function':20} {'before':>8} {'after':>8} {'change':>8}")
    for key, count in after.items():
        profile, kind, function = key
        line = f"{profile:8} {kind:13} {function.removeprefix('count_'):20}"
        if key not in before:
            print(f"{line} {'':>8} {count:8.1f}")
            continue
        percent = 100 * (count - before[key]) / before[key]
        # Less than one instruction is a call that now and then took another turn.
        is_worse |= percent > PERCENT_MAX and count - before[key] > 1
        print(f"{line} {before[key]:8.1f} {count:8.1f} {percent:+7.1f}%")
    sys.exit(f"more than {PERCENT_MAX} % above {arguments.against}" if is_worse else 0)


if __name__ == "__main__":
    main()
