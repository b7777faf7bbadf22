"""A client of a stream: stream.py HOST:PORT sends a line, ends what it writes, and prints what comes back."""

import sys

import farcall

with farcall.Stream(sys.argv[1]) as stream:
    stream.write_all(b"hello\n")
    stream.shutdown()
    while piece := stream.read(4096):
        print(piece.decode(), end="")
