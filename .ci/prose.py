"""Finds riddles in comments, messages and documents: words that name no party, no mechanism, or two things at once.

    python3 .ci/prose.py            fails if product code or a document has one that prose.exceptions does not list
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
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
COMMENT = re.compile(r"(?:^|\s)//[/!]?\s?(.*)")
FUNCTION = re.compile(r"^\s*(?:pub(?:\([a-z]+\))? )?(?:async |const |unsafe )*fn ([a-z0-9_]+)", re.MULTILINE)
# Each with what to write instead.
RIDDLES = {re.compile(pattern): instead for pattern, instead in {
    r"(?i)\b(who|whoever|whom)\b": "the party: a thread, process, peer, client, node",
    r"(?i)\b(nobody|somebody|anybody|everybody|someone|anyone)\b": "no thread, another process, any peer",
    r"(?i)\b(he|him|his|himself|she|her)\b": "it, its, or the noun again",
    r"(?i)\b(told|tells?|telling)\b": "notify, report, announce, send",
    r"(?i)\b(looks(?! up| like)|look(ed|ing)? (at|for|after|on|again))\b": "poll, read, check, search, wait, service",
    r"(?i)\b(heard|hears?)\b": "receive",
    r"(?i)\bunder way\b": "in flight, in progress",
    r"(?i)\b(go|goes|going|went) on\b": "continue, resume",
    r"(?i)\b(abroad|strangers?|newcomers?|kinship|company)\b": "remote, unauthenticated, joining, trust, batch",
    r"(?i)\b(dies|died|dying|dead|deaths?|born)\b": "exits, crashed, created",
    r"(?i)\b(folders?|seldom)\b": "directory, rarely",
    r"(?i)\bin vain\b": "without success, empty, spurious",
    r"(?i)\banew\b": "again",
    r"(?i)\bmeanwhile\b": "concurrently, in the meantime",
    r"(?i)\bbeside\b": "next to, in addition to, compared with",
    r"(?i)\b(gives?|given|gave) (up|back)\b": "abandon, time out; return, release",
    r"(?i)\b(is|are|was|were) over\b(?! (RDMA|RoCE|RC|UC|UD|TCP|a |an |one |that |libibverbs|Ethernet|InfiniBand))": "has ended, has expired",
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


def messages(text):
    """The string literals of a line that are sentences; tests at the end of a file are left out."""
    for line in text.split("\n#[cfg(test)]\nmod tests")[0].split("\n"):
        for literal in LITERAL.findall(COMMENT.sub("", line)):
            if " " in literal:
                yield literal, line.strip()


def sentences(text):
    is_code = False
    for line in text.split("\n"):
        is_code = is_code != line.strip().startswith("```")
        if not is_code:
            yield re.sub(r"`[^`]*`", "``", line), line.strip()


def main():
    found, long_names = {}, []

    def search(path, texts):
        for text, line in texts:
            for riddle, instead in RIDDLES.items():
                if match := riddle.search(text):
                    found[f"{path}: {line}"] = f"\"{match[0]}\"; write {instead}"
                    break

    for path in tracked("*.rs"):
        text = (ROOT / path).read_text()
        long_names += [f"{path}: {name}" for name in FUNCTION.findall(text) if len(name) > NAME_MAX]
        if is_product(path):
            search(path, comments(text))
            search(path, messages(text))
    for path in tracked("*.md"):
        search(path, sentences((ROOT / path).read_text()))
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
