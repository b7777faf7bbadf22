"""Remote calls, a key-value store and byte streams at the speed of one-sided RDMA.

Classes whose names begin with Async are for asyncio. The functions of the others block, and let other threads run in
the meantime. A failure raises an Error, whose `code` is a Code.
"""

import enum as _enum

from ._farcall import CODES as _CODES
from ._farcall import (
    AsyncClient,
    Client,
    Error,
    Item,
    Kv,
    Listener,
    Options,
    Refusal,
    Server,
    Stream,
    __version__,
)
from ._asynchronous import AsyncKv, AsyncListener, AsyncServer, AsyncStream


def _constant(name: str) -> str:
    return "".join("_" + letter if letter.isupper() else letter.upper() for letter in name).lstrip("_")


Code = _enum.IntEnum("Code", [(_constant(name), number) for number, name in enumerate(_CODES)], module=__name__)
Code.__doc__ = "Values of an Error's `code`. The numbers are those of the C library."

__all__ = [
    "AsyncClient",
    "AsyncKv",
    "AsyncListener",
    "AsyncServer",
    "AsyncStream",
    "Client",
    "Code",
    "Error",
    "Item",
    "Kv",
    "Listener",
    "Options",
    "Refusal",
    "Server",
    "Stream",
    "__version__",
]
