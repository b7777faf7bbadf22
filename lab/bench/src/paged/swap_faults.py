"""Touches pages of memory at random, most of which are swapped, and tells how long each took that had to come back.

Arguments: bytes of memory, touches, seed. Says one line of JSON.
"""

import json
import mmap
import random
import resource
import struct
import sys
import time

PAGE = 4096
size, touches, seed = (int(word) for word in sys.argv[1:4])
pages = size // PAGE
memory = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
mark = struct.Struct("<QQ")
for page in range(pages):
    mark.pack_into(memory, page * PAGE + PAGE - mark.size, page, seed)

rng = random.Random(seed)
now, usage, me = time.perf_counter_ns, resource.getrusage, resource.RUSAGE_SELF
unpack, at_end = mark.unpack_from, PAGE - mark.size
times = []
faults = usage(me).ru_majflt
for _ in range(touches):
    page = rng.randrange(pages)
    at = page * PAGE + at_end
    begun = now()
    found = unpack(memory, at)
    ended = now()
    if found != (page, seed):
        sys.exit(f"page {page} holds {found}")
    after = usage(me).ru_majflt
    if after > faults:
        times.append(ended - begun)
    faults = after
times.sort()


def percentile(percent):
    return times[min(len(times) - 1, len(times) * percent // 100)] / 1e3 if times else 0.0


print(json.dumps({"faults": len(times), "p50_us": percentile(50), "p99_us": percentile(99)}))
