#!/usr/bin/env python3
"""The own tests of memcached's clients, and of memcached, against a server of ours.

    python3 .ci/clients.py SERVER FOLDER [SUITE...]

SERVER is the program `farcall`, or `memcached` to see what its own tests say of it. FOLDER takes what is fetched: the
suites come from package registries, pinned, and nothing of them is kept here. A test that does not pass must stand in
.ci/clients.expected, with the reason. On CI, a suite that cannot be fetched is a failure; elsewhere it is skipped.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

# What python-memcached and gomemcache connect to: they know no other.
HOST, PORT = "127.0.0.1", 11211
ADDRESS = f"{HOST}:{PORT}"

PACKAGES = {
    "pymemcache": ["pymemcache==4.0.0", "Faker==15.1.0", "zstd==1.5.7.2"],
    "python-memcached": ["python-memcached==1.62"],
    "pylibmc": ["pylibmc==1.6.3"],
}
PYTEST = "pytest==8.3.4"
GOMEMCACHE = ("github.com/bradfitz/gomemcache", "v0.0.0-20260422231931-4d751bb6e37c")
MEMCACHED = "1.6.18"

# Two of python-memcached's files import this from one that its archive lacks.
CAPTURED_STDERR = """
import contextlib, io
@contextlib.contextmanager
def captured_stderr():
    with contextlib.redirect_stderr(io.StringIO()) as text:
        yield text
"""


class NotHere(Exception):
    """The registry of this machine has another version."""


class FetchFailed(Exception):
    """A registry did not give what it has."""


class Server:
    """A fresh server; it ends with the block."""

    def __init__(self, program):
        if pathlib.Path(program).name == "memcached":
            command = [program, "-l", HOST, "-p", str(PORT), "-U", "0"]
            command += ["-u", "root"] if os.getuid() == 0 else []
        else:
            command = [program, "kv", "serve", "--tcp", ADDRESS]
        self.command = command

    def __enter__(self):
        if accepts():
            sys.exit(f"Something listens on {ADDRESS} already, where these suites expect the server: stop it.")
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not accepts():
            if self.process.poll() is not None:
                sys.exit(f"{' '.join(self.command)} ended with {self.process.returncode} instead of serving.")

    def __exit__(self, *_):
        died = self.process.poll()
        self.process.terminate()
        self.process.wait()
        if died is not None and sys.exc_info()[0] is None:
            sys.exit(f"{' '.join(self.command)} died under a suite: {died}.")


def accepts():
    try:
        socket.create_connection((HOST, PORT), timeout=5).close()
        return True
    except OSError:
        return False


def fetch(*command, **options):
    """What a registry's client prints."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )
    except FileNotFoundError as error:
        raise FetchFailed(f"{command[0]} is missing: install it") from error
    if done.returncode != 0:
        last_lines = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise FetchFailed(f"{' '.join(map(str, command))}: {last_lines}")
    return done.stdout


def unpack(archive, folder):
    """The folder in which everything of the archive is."""
    names = fetch("tar", "-tf", archive)
    fetch("tar", "-xf", archive, "-C", folder)
    return folder / names.split("/")[0]


def python_suite(name, folder, server, options):
    """Runs a package's tests by pytest, in an environment of its own."""
    python = folder / "venv/bin/python"
    fetch(sys.executable, "-m", "venv", folder / "venv")
    fetch(python, "-m", "pip", "install", "--quiet", PYTEST, *PACKAGES[name])
    fetch(python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", folder,
          PACKAGES[name][0])
    tree = unpack(next(folder.glob("*.tar.gz")), folder)
    if name == "python-memcached":
        (tree / "tests/__init__.py").touch()
        (tree / "tests/utils.py").write_text(CAPTURED_STDERR)
    report = folder / "report.xml"
    with Server(server):
        subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "--tb=short",
             f"--junitxml={report}", *options],
            cwd=tree, stdin=subprocess.DEVNULL, timeout=600, check=False,
        )
    if not report.exists():
        return {}
    results = {}
    for case in ElementTree.parse(report).iter("testcase"):
        outcomes = {child.tag for child in case} & {"failure", "error", "skipped"}
        results[f"{case.get('classname')}::{case.get('name')}"] = min(outcomes, default="passed")
    return results


def pymemcache(folder, server):
    # Its own default leaves out what needs a server; what measures speed or needs TLS stays out.
    chosen = ["pymemcache/test", "-m", "unit or integration", f"--server={HOST}", f"--port={PORT}"]
    return python_suite("pymemcache", folder, server, chosen)


def python_memcached(folder, server):
    return python_suite("python-memcached", folder, server, ["tests"])


def pylibmc(folder, server):
    return python_suite("pylibmc", folder, server, ["tests"])


def gomemcache(folder, server):
    module = json.loads(fetch("go", "mod", "download", "-json", "@".join(GOMEMCACHE), cwd=folder))
    with Server(server):
        done = subprocess.run(
            ["go", "test", "-count=1", "-json", "./memcache/"], cwd=module["Dir"], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, text=True, timeout=600, check=False,
        )
    words = {"pass": "passed", "fail": "failure", "skip": "skipped"}
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for event in events:
        if event["Action"] == "output":
            print(event["Output"], end="")
    return {event["Test"]: words[event["Action"]] for event in events if "Test" in event and event["Action"] in words}


def memcached_source(folder):
    """memcached's source package, from where this machine has its packages."""
    for name in ("parts", "state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    targets = fetch("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)",
                    "Identifier: Packages")
    lines = sorted({f"deb-src {line}\n" for line in targets.splitlines() if line.endswith(" main")})
    (folder / "parts/sources.list").write_text("".join(lines))
    options = ["-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={folder}/parts",
               "-o", f"Dir::State={folder}/state", "-o", f"Dir::Cache={folder}/cache",
               "-o", "Dir::State::status=/var/lib/dpkg/status", "-o", "APT::Sandbox::User=root"]
    fetch("apt-get", *options, "update")
    known = fetch("apt-cache", *options, "showsrc", "--only-source", "memcached")
    versions = [line.split()[1] for line in known.splitlines() if line.startswith("Version: ")]
    wanted = next((version for version in versions if version.startswith(f"{MEMCACHED}-")), None)
    if wanted is None:
        raise NotHere(f"the packages of this machine have memcached {', '.join(versions)}, not {MEMCACHED}")
    fetch("apt-get", *options, "--only-source", "--download-only", "source", f"memcached={wanted}", cwd=folder)
    return unpack(next(folder.glob("memcached_*.orig.tar.*z")), folder)


def memcached(folder, server):
    tree = memcached_source(folder)
    # The tests ask the program that they would start what it can do. They start none here.
    program = tree / "memcached-debug"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    results = {}
    for test in sorted((tree / "t").glob("*.t")):
        with Server(server):
            # A session of its own: some of them signal their process group.
            done = subprocess.run(
                ["timeout", "--kill-after=5", "30", "prove", f"t/{test.name}"], cwd=tree, start_new_session=True,
                env={**os.environ, "T_MEMD_USE_DAEMON": ADDRESS}, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
            )
        passed = "skipped" if "Result: NOTESTS" in done.stdout else "passed"
        results[test.name] = passed if done.returncode == 0 else "failure"
        print(f"{test.name}: {results[test.name]}", flush=True)
        if results[test.name] == "failure" and not expected().get(("memcached", test.name)):
            print(done.stdout)
    return results


SUITES = {
    "pymemcache": pymemcache,
    "python-memcached": python_memcached,
    "gomemcache": gomemcache,
    "pylibmc": pylibmc,
    "memcached": memcached,
}


def expected():
    """The reason why a test of a suite does not pass, by both their names."""
    reasons = {}
    for line in pathlib.Path(__file__).with_suffix(".expected").read_text().splitlines():
        if line and not line.startswith("#"):
            names, reason = line.split(" # ", 1)
            suite, test = names.split(None, 1)
            reasons[suite, test.strip()] = reason
    return reasons


def judge(suite, results):
    """Prints what a suite says; returns whether it is as expected."""
    reasons = {test: reason for (of, test), reason in expected().items() if of == suite}
    passed = sum(result == "passed" for result in results.values())
    unexpected = {test: result for test, result in results.items() if result != "passed" and test not in reasons}
    print(f"{suite}: {passed} of {len(results)} pass, {len(results) - passed - len(unexpected)} do not, as expected")
    for test, result in unexpected.items():
        print(f"{suite}: {test}: {result}, which is not expected")
    for test in reasons:
        if results.get(test, "passed") == "passed":
            what = "passes now" if test in results else "is no test of this suite"
            print(f"{suite}: {test} {what}: take it out of .ci/clients.expected")
    if passed == 0:
        print(f"{suite}: no test has passed, see above")
    return passed > 0 and not unexpected


def main():
    server, folder, chosen = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), sys.argv[3:] or list(SUITES)
    good = True
    for suite in chosen:
        print(f"\n-- {suite}", flush=True)
        place = folder / suite
        place.mkdir(parents=True)
        try:
            good &= judge(suite, SUITES[suite](place, server))
        except subprocess.TimeoutExpired as reason:
            good = False
            print(f"FAILED: {suite} does not end: {reason}")
        except NotHere as reason:
            print(f"SKIPPED: {suite}: {reason}")
        except FetchFailed as reason:
            good &= not os.environ.get("CI")
            print(f"{'FAILED' if os.environ.get('CI') else 'SKIPPED'}: {suite} cannot be fetched: {reason}")
    sys.exit(0 if good else 1)


main()
