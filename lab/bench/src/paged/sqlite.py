"""A table of SQLite in memory under two mixes: sqlite.py RECORDS SECONDS SEED.

Fills the table, then reads and updates one record after another for so many seconds under ETC (95 % reads), then under
SYS (75 %), the keys by Zipf. Every value tells its record and version and is compared. Prints a line of JSON:
operations a second and the 99th percentile of their times in microseconds for each mix, and the most memory that was
resident.
"""

import hashlib
import itertools
import json
import random
import resource
import sqlite3
import struct
import sys
import time

VALUE_BYTES, THETA, DRAWN = 1000, 0.99, 1 << 16
records, seconds, seed = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
draw = random.Random(seed)


def value(key, version):
    return hashlib.shake_128(struct.pack("<QQ", key, version)).digest(VALUE_BYTES)


# Ranks are scattered over the keys by a prime, so that records that are asked for often are not neighbours.
weights = list(itertools.accumulate(1 / rank**THETA for rank in range(1, records + 1)))
ranks = draw.choices(range(records), cum_weights=weights, k=DRAWN)
keys = [rank * 2654435761 % records for rank in ranks]

store = sqlite3.connect(":memory:", isolation_level=None)
store.execute("CREATE TABLE pairs (key INTEGER PRIMARY KEY, value BLOB)")
store.execute("BEGIN")
store.executemany("INSERT INTO pairs VALUES (?, ?)", ((key, value(key, 0)) for key in range(records)))
store.execute("COMMIT")
versions = [0] * records


def operate(reads_percent):
    times_ns, end = [], time.monotonic() + seconds
    begun = time.monotonic()
    for key in itertools.cycle(keys):
        reads = draw.randrange(100) < reads_percent
        before = time.perf_counter_ns()
        if reads:
            [found] = store.execute("SELECT value FROM pairs WHERE key = ?", (key,)).fetchone()
        else:
            store.execute("UPDATE pairs SET value = ? WHERE key = ?", (value(key, versions[key] + 1), key))
        times_ns.append(time.perf_counter_ns() - before)
        if not reads:
            versions[key] += 1
        elif found != value(key, versions[key]):
            sys.exit(f"record {key} has other bytes than version {versions[key]}")
        if time.monotonic() > end:
            break
    elapsed = time.monotonic() - begun
    times_ns.sort()
    return {"per_second": len(times_ns) / elapsed, "p99_us": times_ns[len(times_ns) * 99 // 100] / 1e3}


told = {"etc": operate(95), "sys": operate(75)}
# The whole table, too: what was never asked for is right as well.
for key, found in store.execute("SELECT key, value FROM pairs"):
    if found != value(key, versions[key]):
        sys.exit(f"record {key} has other bytes than version {versions[key]}")
told["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps(told), flush=True)
