"""Finds riddles in comments: words that name no party, no mechanism, or two things at once.

    python3 .ci/prose.py            fails if a comment of product code has one that prose.exceptions does not list
    python3 .ci/prose.py --list     prints all of them, as lines of prose.exceptions

It also fails on functions whose names are longer than 60 characters. CONTRIBUTING.md says how to write instead.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXCEPTIONS = ROOT / ".ci" / "prose.exceptions"
NAME_MAX = 60
COMMENT = re.compile(r"(?:^|\s)//[/!]?\s?(.*)")
FUNCTION = re.compile(r"^\s*(?:pub(?:\([a-z]+\))? )?(?:async |const |unsafe )*fn ([a-z0-9_]+)", re.MULTILINE)
# Each with what to write instead.
RIDDLES = {re.compile(pattern): instead for pattern, instead in {
    r"(?i)\b(who|whoever|whom)\b": "the party: a thread, process, peer, client, node",
    r"(?i)\b(nobody|somebody|anybody|everybody|someone|anyone)\b": "no thread, another process, any peer",
    r"(?i)\b(he|him|his|himself|she|her)\b": "it, its, or the noun again",
    r"(?i)\b(told|tells?|telling)\b": "notify, report, announce, send",
    r"(?i)\blook(s|ed|ing)? (at|for|after|on|again)\b": "poll, read, check, search, wait, service",
    r"(?i)\b(heard|hears?)\b": "receive",
    r"(?i)\bunder way\b": "in flight, in progress",
    r"(?i)\b(go|goes|going|went) on\b": "continue, resume",
    r"(?i)\b(abroad|strangers?|newcomers?|kinship)\b": "remote, unauthenticated, joining, trust",
    r"(?i)\bin vain\b": "without success, empty, spurious",
    r"(?i)\bso (many|much|often)\b": "the name of the quantity",
    r"^(Of|Whom|Whose|Who|What)\b": "a noun phrase, or a verb with its subject",
    r"SAFETY: (as (above|below|in|before)|the (caller|program|poster)'s promise)": "the fact, and the function whose contract gives it",
}.items()}


def tracked(*patterns):
    names = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return names.split("\n")[:-1]


def is_product(path):
    parts = path.split("/")
    return parts[0] not in ("fuzz", "tests") and not {"tests", "benches", "examples", "tests.rs"} & set(parts)


def comments(text):
    is_code = False
    for line in text.split("\n"):
        comment = COMMENT.search(line)
        is_code = comment is not None and is_code != comment[1].startswith("```")
        # Code spans and examples name things as they are.
        if comment and not is_code:
            yield re.sub(r"`[^`]*`", "``", comment[1]), line.strip()


def main():
    found, long_names = {}, []
    for path in tracked("*.rs"):
        text = (ROOT / path).read_text()
        long_names += [f"{path}: {name}" for name in FUNCTION.findall(text) if len(name) > NAME_MAX]
        if is_product(path):
            for comment, line in comments(text):
                for riddle, instead in RIDDLES.items():
                    if match := riddle.search(comment):
                        found[f"{path}: {line}"] = f"\"{match[0]}\"; write {instead}"
                        break
    if sys.argv[1:] == ["--list"]:
        return print(*found, sep="\n")
    allowed = set(EXCEPTIONS.read_text().splitlines())
    problems = [f"{place}\n    {why}" for place, why in found.items() if place not in allowed]
    problems += [f"{name}: over {NAME_MAX} characters" for name in long_names]
    problems += [f"not there any more, remove it from prose.exceptions: {place}" for place in sorted(allowed - set(found))]
    if problems:
        sys.exit("\n".join(problems))
    print(f"No riddle; {len(allowed)} exceptions.")


if __name__ == "__main__":
    main()
