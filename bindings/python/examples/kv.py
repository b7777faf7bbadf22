"""A client of the store: kv.py HOST:PORT of farcall kv serve --rpc."""

import sys

import farcall

with farcall.Kv(sys.argv[1]) as kv:
    kv.put(b"greeting", b"hello", time_to_live=60.0)
    print(kv.get(b"greeting").value.decode())
