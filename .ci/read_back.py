"""Reads every record of a TSV file back through an ordinary memcached client, and writes a few.

    read_back.py FILE.tsv SERVER...        SERVER: host:port, or unix:/path

Needs pymemcache (Debian: python3-pymemcache).
"""

import sys
import time

from pymemcache.client.base import Client


def records(path):
    """The file's records as a dictionary of byte strings."""
    with open(path, "rb") as file:
        return dict(line.rstrip(b"\n").split(b"\t", 1) for line in file)


def read_all(client, wanted):
    """Compares every record with what the server has. Returns the number of records that differ."""
    wrong = 0
    keys = list(wanted)
    for at in range(0, len(keys), 100):
        chunk = keys[at : at + 100]
        found = client.get_many(chunk)
        for key in chunk:
            if found.get(key) != wanted[key]:
                wrong += 1
                if wrong <= 10:
                    print(f"{key!r}: wanted {wanted[key]!r}, got {found.get(key)!r}")
    return wrong


def write_some(client):
    """The operations that people use most. Returns what does not behave."""
    checks = {
        "set": client.set("ci-key", b"one", noreply=False) is True,
        "add is refused": client.add("ci-key", b"two", noreply=False) is False,
        "append": client.append("ci-key", b"+", noreply=False) is True,
        "get": client.get("ci-key") == b"one+",
        "cas": client.cas("ci-key", b"three", client.gets("ci-key")[1]) is True,
        "stale cas": client.cas("ci-key", b"four", b"1") is False,
        "counter": client.set("ci-counter", b"41", noreply=False) and client.incr("ci-counter", 1) == 42,
        "touch": client.touch("ci-key", 100, noreply=False) is True,
        "delete": client.delete("ci-key", noreply=False) is True,
        "gone": client.get("ci-key") is None,
        "version": bool(client.version()),
        "stats": int(client.stats()[b"curr_items"]) > 0,
    }
    return [name for name, holds in checks.items() if not holds]


def main():
    path, servers = sys.argv[1], sys.argv[2:]
    wanted = records(path)
    assert wanted and servers, "nothing to compare"
    failed = False
    for server in servers:
        # Keys of a word list are not all ASCII.
        client = Client(server, connect_timeout=5, timeout=30, allow_unicode_keys=True)
        began = time.monotonic()
        wrong = read_all(client, wanted)
        broken = write_some(client)
        print(f"{server}: {len(wanted)} records read back in {time.monotonic() - began:.1f} s, {wrong} wrong; "
              f"writes: {', '.join(broken) + ' wrong' if broken else 'all as they should be'}")
        failed = failed or wrong > 0 or bool(broken)
        client.close()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
