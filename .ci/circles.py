#!/usr/bin/env python3
"""Counts circles of imports between the files of each package, and compares them with .ci/circles.expected.

    python3 .ci/circles.py            fails if a package has more or larger circles than .ci/circles.expected lists
    python3 .ci/circles.py --list     prints every circle with its files and the names that tie them
    python3 .ci/circles.py --write    writes .ci/circles.expected

A circle is a set of files of which each imports, directly or through others, each other one. Imports between a module
and its own children do not count, because a child extends its parent. Imports are read from paths that begin with
`crate`, `self` or `super`; a name that a module re-exports counts as an import of the module that defines it. Unit
tests (`mod tests`) are left out.
"""
import collections
import re
import subprocess
import sys
from pathlib import Path

EXPECTED = Path(".ci/circles.expected")
# Maximum number of re-exports that a name passes.
REEXPORTS_MAX = 8
PATH = re.compile(r"\b((?:crate|self|super)(?:::(?:\w+|\{))+)")


def strip(text):
    """Returns `text` without comments, string literals and unit tests."""
    text = re.sub(r'(?s)/\*.*?\*/|//[^\n]*|b?r#*".*?"#*|"(?:\\.|[^"\\])*"', " ", text)
    return re.split(r"#\[cfg\((?:all\()?test[^\n]*\]\s*(?:pub\(\w+\) )?mod \w+ \{", text)[0]


def expand(tree):
    """Yields the paths of a use tree such as `a::{b, c::{d as e}}` with the name that each binds."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    if not brace:
        path, _, alias = tree.partition(" as ")
        parts = [part.strip() for part in path.split("::") if part.strip()]
        if parts:
            yield parts, alias.strip() or parts[-1]
        return
    depth, item, items = 0, "", []
    for character in rest[: rest.rfind("}")]:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            items.append(item)
            item = ""
        else:
            item += character
    prefix = [part.strip() for part in head.split("::") if part.strip()]
    for item in [*items, item]:
        for parts, name in expand(item):
            if parts[-1] == "self":
                parts = parts[:-1]
                name = (prefix + parts)[-1] if name == "self" else name
            yield prefix + parts, name


class Package:
    """The modules of one package and what they import from each other."""

    def __init__(self, root, files):
        self.text, self.path = {}, {}
        for file in files:
            parts = list(Path(file).relative_to(root).with_suffix("").parts)
            if parts[-1] in ("mod", "lib", "main"):
                parts.pop()
            self.path[tuple(parts)] = file
            self.text[tuple(parts)] = strip(Path(file).read_text())
        self.bound = {module: dict(self.bindings(module)) for module in self.text}
        self.edges = collections.defaultdict(lambda: collections.defaultdict(set))
        for module in self.text:
            for parts in self.paths(module):
                target, name = self.resolve(module, parts)
                if target is not None and not self.related(module, target):
                    self.edges[module][target].add(name)

    def uses(self, module):
        for found in re.finditer(r"\buse\s+([^;]+);", self.text[module]):
            yield from expand(found[1])

    def bindings(self, module):
        for parts, name in self.uses(module):
            yield name, parts

    def paths(self, module):
        for parts, _ in self.uses(module):
            yield parts
        for found in PATH.finditer(re.sub(r"\buse\s+[^;]+;", " ", self.text[module])):
            yield found[1].split("::")

    def related(self, one, other):
        short, long = sorted((one, other), key=len)
        return long[: len(short)] == short

    def resolve(self, module, parts, depth=0):
        """Returns the module that defines the item of the path `parts` in `module`, and the item's name.

        Returns `(None, None)` if the path leads out of the package.
        """
        if depth > REEXPORTS_MAX:
            return None, None
        if parts[0] == "crate":
            at, rest = (), parts[1:]
        elif parts[0] == "self":
            at, rest = module, parts[1:]
        elif parts[0] == "super":
            at, rest = module[:-1], parts[1:]
        elif module + (parts[0],) in self.text:
            at, rest = module, parts
        else:
            return None, None
        for part in rest:
            if part == "super":
                at = at[:-1]
            elif at + (part,) in self.text:
                at += (part,)
            elif at in self.text and part in self.bound[at] and at != module:
                target, name = self.resolve(at, self.bound[at][part], depth + 1)
                return (at, part) if target is None else (target, name)
            else:
                break
        return (at if at in self.text else None), rest[-1] if rest else ""

    def circles(self):
        """Returns the strongly connected sets of more than one file, the largest first (Tarjan's algorithm)."""
        index, low, stack, found = {}, {}, [], []

        def visit(module):
            index[module] = low[module] = len(index)
            stack.append(module)
            for target in self.edges[module]:
                if target not in index:
                    visit(target)
                    low[module] = min(low[module], low[target])
                elif target in stack:
                    low[module] = min(low[module], index[target])
            if low[module] == index[module]:
                at = stack.index(module)
                if len(stack) - at > 1:
                    found.append(sorted(stack[at:]))
                del stack[at:]

        for module in sorted(self.text):
            if module not in index:
                visit(module)
        return sorted(found, key=len, reverse=True)


def packages():
    files = subprocess.check_output(["git", "ls-files", "*.rs", "*Cargo.toml"], text=True).split()
    for manifest in files:
        root = Path(manifest).parent / "src" if manifest.endswith("Cargo.toml") else None
        own = root and [file for file in files if file.startswith(f"{root}/") and not file.endswith("tests.rs")]
        if own:
            yield str(root.parent), Package(root, own)


def main():
    sys.setrecursionlimit(10_000)
    counted = {}
    for name, package in packages():
        circles = package.circles()
        counted[name] = " ".join(str(len(circle)) for circle in circles)
        if "--list" in sys.argv:
            for circle in circles:
                print(f"{name}: circle of {len(circle)} files")
                for module in circle:
                    for target in circle:
                        if names := package.edges[module].get(target):
                            print(f"    {package.path[module]} -> {package.path[target]}: {', '.join(sorted(names))}")
    lines = [f"{name}: {sizes}\n" for name, sizes in sorted(counted.items()) if sizes]
    if "--write" in sys.argv:
        EXPECTED.write_text("".join(lines))
        return 0
    expected = dict(line.strip().split(": ") for line in EXPECTED.read_text().splitlines()) if EXPECTED.exists() else {}
    failed = 0
    for name, sizes in counted.items():
        now = [int(size) for size in sizes.split()]
        before = [int(size) for size in expected.get(name, "").split()]
        if len(now) > len(before) or any(size > limit for size, limit in zip(now, before)):
            print(f"{name}: circles of imports of {sizes} files, at most {expected.get(name, 'none')} are expected; "
                  "python3 .ci/circles.py --list names them")
            failed = 1
        elif now != before:
            print(f"{name}: fewer circles than .ci/circles.expected lists; lower it by python3 .ci/circles.py --write")
            failed = 1
    return failed


sys.exit(main())
