"""Finds functions in Rust sources, and edits them token by token.

How a file is formatted, and where it lies, does not matter.
"""

import dataclasses
import functools
import pathlib
import re

# Folders whose children are packages; one more stands at the root.
PACKAGE_FOLDERS = ("crates", "dropin", "tools", "bindings")
TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
      | (?P<comment>/\*)
      | (?P<text>\b(?:b|c)?r(?P<hashes>\#*)".*?"(?P=hashes) | \b[bc]?"(?:[^"\\]|\\.)*" | "(?:[^"\\]|\\.)*")
      | (?P<char>b?'(?:[^'\\\n]|\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.))')
      | (?P<word>'?[A-Za-z_]\w*|\$\w+)
      | (?P<number>\d[\w]*(?:\.\d[\w]*)?)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
OPENING, CLOSING = "([{", ")]}"


@dataclasses.dataclass(frozen=True)
class Token:
    """A token and where it stands."""

    text: str
    start: int
    end: int


def tokens_of(source):
    """The tokens of Rust source, without comments and without commas before a closing bracket."""
    found, at = [], 0
    while at < len(source):
        match = TOKEN.match(source, at)
        at = match.end()
        if match["comment"]:
            depth = 1
            while depth and at < len(source):
                step = re.compile(r"/\*|\*/|.", re.DOTALL).match(source, at)
                depth += {"/*": 1, "*/": -1}.get(step[0], 0)
                at = step.end()
        elif not match["space"]:
            if match[0] in CLOSING and found and found[-1].text == ",":
                found.pop()
            found.append(Token(match[0], match.start(), match.end()))
    return found


def end_of_group(tokens, at):
    """The index of the bracket that closes the one at `at`."""
    depth = 0
    for index in range(at, len(tokens)):
        depth += (tokens[index].text in OPENING) - (tokens[index].text in CLOSING)
        if depth == 0:
            return index
    raise ValueError("a bracket is not closed")


@dataclasses.dataclass(frozen=True)
class Function:
    """A function with a body: the names that lead to it, and where the body stands in which file."""

    path: tuple
    file: pathlib.Path
    start: int
    end: int

    def is_named(self, wanted):
        """Whether `wanted` (`Type::name`, `module::name`, `crate::Type::name`) names it."""
        *scopes, name = wanted.split("::")
        rest = iter(self.path[:-1])
        return name == self.path[-1] and all(scope in rest for scope in scopes)


def type_name(tokens):
    """The name of the type in `impl … {`: the last segment of its path."""
    angle, after = 0, 0
    for index, token in enumerate(tokens):
        is_arrow = token.text == ">" and index and tokens[index - 1].text == "-"
        angle += (token.text == "<") - (token.text == ">" and not is_arrow)
        if angle == 0 and token.text == "for":
            after = index + 1
        if angle == 0 and token.text == ">" and after == 0 and tokens[0].text == "<":
            after = index + 1
            tokens = tokens[:1] + tokens[1:]
    name = ""
    for token in tokens[after:]:
        if token.text in ("<", "where") and name:
            break
        if re.fullmatch(r"[A-Za-z_]\w*", token.text) and token.text not in ("mut", "dyn", "const", "where"):
            name = token.text
    return name


def functions_between(tokens, at, end, path, file):
    """The functions in tokens[at:end], with those inside them."""
    while at < end:
        word = tokens[at].text
        if word in ("mod", "trait", "impl", "fn"):
            brace = at + 1
            while brace < end and tokens[brace].text not in "{;":
                brace = end_of_group(tokens, brace) + 1 if tokens[brace].text in "([" else brace + 1
            # `fn(u8)` is a type; `mod name;` and a declaration have no body.
            has_name = word == "impl" or at + 1 < end and re.fullmatch(r"\w+", tokens[at + 1].text)
            if brace < end and tokens[brace].text == "{" and has_name:
                close = end_of_group(tokens, brace)
                name = type_name(tokens[at + 1 : brace]) if word == "impl" else tokens[at + 1].text
                if word == "fn":
                    yield Function((*path, name), file, tokens[brace].start, tokens[close].end)
                yield from functions_between(tokens, brace + 1, close, (*path, name), file)
                at = close
        at += 1


def packages(root):
    """The folders of the repository's packages."""
    return [root, *(path for folder in PACKAGE_FOLDERS for path in sorted((root / folder).glob("*")))]


@functools.cache
def functions_of(root):
    """All functions of the repository's packages, without those of tests."""
    found = []
    for package in packages(root):
        sources, crate = package / "src", () if package == root else (package.name,)
        for file in sorted(sources.rglob("*.rs")):
            modules = file.relative_to(sources).with_suffix("").parts
            modules = modules[:-1] if modules[-1] in ("mod", "lib", "main") else modules
            tokens = tokens_of(file.read_text())
            found.extend(functions_between(tokens, 0, len(tokens), (*crate, *modules), file))
    return [function for function in found if "tests" not in function.path]


def match_at(tokens, at, pattern):
    """Where `pattern` ends if it begins at tokens[at], and what its holes hold; or None.

    `$name` in a pattern is a hole: as few tokens as possible, with balanced brackets.
    """
    if not pattern:
        return at, {}
    first, *rest = pattern
    if not first.startswith("$"):
        if at < len(tokens) and tokens[at].text == first:
            return match_at(tokens, at + 1, rest)
        return None
    end = at
    while end < len(tokens) and tokens[end].text not in CLOSING:
        end = end_of_group(tokens, end) + 1 if tokens[end].text in OPENING else end + 1
        found = match_at(tokens, end, rest)
        if found:
            return found[0], {**found[1], first: (at, end)}
    return None


def occurrences(tokens, text):
    """Every place in `tokens` where the Rust text `text` stands: (begin, end, holes)."""
    pattern = [token.text for token in tokens_of(text)]
    for at in range(len(tokens)):
        found = match_at(tokens, at, pattern)
        if found:
            yield at, *found


@dataclasses.dataclass(frozen=True)
class Replace:
    """Puts other text in the place of an expression or a statement."""

    what: str
    by: str

    def edits(self, tokens, body):
        for begin, end, holes in occurrences(tokens, self.what):
            text = self.by
            for hole, (first, last) in holes.items():
                text = text.replace(hole, body[tokens[first].start : tokens[last - 1].end])
            yield tokens[begin].start, tokens[end - 1].end, text


@dataclasses.dataclass(frozen=True)
class Delete:
    """Leaves out the statement that contains some text and ends with a semicolon."""

    what: str

    def edits(self, tokens, body):
        for begin, end, _ in occurrences(tokens, self.what):
            depth = 0
            while depth or tokens[begin - 1].text not in ";{}":
                begin -= 1
                depth += (tokens[begin].text in CLOSING) - (tokens[begin].text in OPENING)
            while tokens[end - 1].text != ";":
                end = end_of_group(tokens, end) + 1 if tokens[end].text in OPENING else end + 1
            yield tokens[begin].start, tokens[end - 1].end, ""


def edited(root, name, edit):
    """The function called `name` in which `edit` fits, and its file's text after the edit.

    Fails unless there is exactly one such place in all functions of that name.
    """
    candidates = [function for function in functions_of(root) if function.is_named(name)]
    if not candidates:
        raise LookupError(f"there is no function {name}")
    found = []
    for function in candidates:
        text = function.file.read_text()
        body = text[function.start : function.end]
        for start, end, new in edit.edits(tokens_of(body), body):
            found.append((function, text[: function.start + start] + new + text[function.start + end :]))
    if len(found) != 1:
        places = ", ".join(str(function.file.relative_to(root)) for function in candidates)
        raise LookupError(f"{edit} fits {len(found)} times in {name} ({places}), must once")
    return found[0]
