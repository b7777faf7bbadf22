import enum

from ._asynchronous import AsyncKv as AsyncKv
from ._asynchronous import AsyncListener as AsyncListener
from ._asynchronous import AsyncServer as AsyncServer
from ._asynchronous import AsyncStream as AsyncStream
from ._farcall import AsyncClient as AsyncClient
from ._farcall import Client as Client
from ._farcall import Error as Error
from ._farcall import Item as Item
from ._farcall import Kv as Kv
from ._farcall import Listener as Listener
from ._farcall import Options as Options
from ._farcall import Refusal as Refusal
from ._farcall import Server as Server
from ._farcall import Stream as Stream
from ._farcall import __version__ as __version__

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

class Code(enum.IntEnum):
    OK = 0
    INVALID = 1
    BUSY = 2
    PANICKED = 3
    SYSTEM = 4
    DEVICE = 5
    UNREACHABLE = 6
    REFUSED = 7
    DEADLINE_EXCEEDED = 8
    NOT_SENT = 9
    OUTCOME_UNKNOWN = 10
    NOT_EXECUTED = 11
    RESULT_LOST = 12
    APPLICATION = 13
    TOO_LARGE = 14
    KEY = 15
    NOT_FOUND = 16
    NOT_STORED = 17
    OTHER_VERSION = 18
    NOT_A_NUMBER = 19
    STORE_FULL = 20
    MOVED = 21
    WOULD_BLOCK = 22
    TIMED_OUT = 23
    RESET = 24
    BROKEN_PIPE = 25
