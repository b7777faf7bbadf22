"""The asyncio classes that are written in Python."""

import asyncio
import concurrent.futures

from . import _farcall

# Number in farcall.Code, which is built from the same list.
_WOULD_BLOCK = _farcall.CODES.index("WouldBlock")


class AsyncKv:
    """A client of a key-value store. Its methods are coroutine functions with the names of those of Kv. They run in
    a thread of the client."""

    def __init__(self, kv, thread):
        self._kv = kv
        self._thread = thread

    @classmethod
    async def connect(cls, address, options=None):
        """Connects to a store."""
        thread = concurrent.futures.ThreadPoolExecutor(1, "farcall-kv")
        try:
            kv = await asyncio.get_running_loop().run_in_executor(thread, _farcall.Kv, address, options)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(kv, thread)

    def _run(self, method, *arguments, **named):
        return asyncio.get_running_loop().run_in_executor(self._thread, lambda: method(*arguments, **named))

    async def get(self, key):
        """Returns the item of a key, or None."""
        return await self._run(self._kv.get, key)

    async def get_many(self, keys):
        """Looks up many keys at once. Returns their items, or None, in the order of the keys."""
        return await self._run(self._kv.get_many, keys)

    async def put(self, key, value, *, flags=0, time_to_live=None, mode="set"):
        """Stores a value. Returns the new version of the item. `time_to_live` is in seconds; None: unlimited."""
        return await self._run(self._kv.put, key, value, flags=flags, time_to_live=time_to_live, mode=mode)

    async def compare_and_swap(self, key, value, version, *, flags=0, time_to_live=None):
        """Stores a value if the item still has this version. Returns the new version."""
        return await self._run(
            self._kv.compare_and_swap, key, value, version, flags=flags, time_to_live=time_to_live
        )

    async def delete(self, key, version=None):
        """Removes an item. Returns whether the key had one. If `version` is given, fails if the item has another
        version."""
        return await self._run(self._kv.delete, key, version)

    async def touch(self, key, time_to_live=None):
        """Sets the remaining time to live of an item in seconds; None: unlimited. Returns whether the key has an
        item."""
        return await self._run(self._kv.touch, key, time_to_live)

    async def close(self):
        """Closes the client."""
        await self._run(self._kv.close)
        self._thread.shutdown(wait=False)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_exception):
        await self.close()


class AsyncServer:
    """A server of remote calls whose handler is a coroutine function. The handler runs in the event loop in which the
    server was created. Each thread of the server waits for one call of the handler at a time."""

    def __init__(self, address, handler, options=None):
        loop = asyncio.get_running_loop()

        def handle(method, request):
            return asyncio.run_coroutine_threadsafe(handler(method, request), loop).result()

        self._server = _farcall.Server(address, handle, options)
        self.address = self._server.address

    async def stop(self):
        """Finishes the calls received so far, then ends the threads."""
        await asyncio.to_thread(self._server.stop)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_exception):
        await self.stop()


_READ, _WRITE = 0, 1


class _Readiness:
    """Waits until the descriptor of a stream or a listener reports that a call that would have blocked may continue.
    `ready` returns whether a read and a write could proceed without waiting."""

    def __init__(self, watched, ready=lambda: (False, False)):
        self._loop = asyncio.get_running_loop()
        self._fd = watched.fileno()
        self._ready = ready
        self._waiters = (set(), set())

    def end(self):
        """Wakes all waiting tasks and stops watching the descriptor until a task waits again."""
        for waiters in self._waiters:
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
            waiters.clear()
        self._loop.remove_reader(self._fd)

    def _let_others_look(self):
        # A call may have consumed the event for which a waiting task waits. If no task waits, the descriptor must not
        # be used: the object may be closed, and the number reused.
        if any(self._waiters):
            self.end()

    def _wait(self, direction):
        waiter = self._loop.create_future()
        self._loop.add_reader(self._fd, self.end)
        self._waiters[direction].add(waiter)
        return waiter

    async def run(self, direction, call, *arguments):
        """Repeats `call` until it does not fail with WOULD_BLOCK. Returns its result."""
        while True:
            try:
                result = call(*arguments)
            except _farcall.Error as error:
                if error.code != _WOULD_BLOCK:
                    self._let_others_look()
                    raise
            else:
                self._let_others_look()
                return result
            # A call that would have blocked may also have consumed the event for which the other direction waits. The
            # descriptor does not report it again.
            if self._waiters[1 - direction] and self._ready()[1 - direction]:
                self.end()
            waiter = self._wait(direction)
            try:
                await waiter
            finally:
                self._waiters[direction].discard(waiter)


class AsyncStream:
    """A byte stream. One task may read while another one writes."""

    def __init__(self, stream):
        self._stream = stream
        self._readiness = _Readiness(stream, stream.ready)
        self.peer_address = stream.peer_address
        self.path = stream.path

    @classmethod
    async def connect(cls, address):
        """Connects to a listener."""
        options = _farcall.Options(nonblocking=True)
        return cls(await asyncio.to_thread(_farcall.Stream, address, options))

    async def read(self, bytes_max):
        """Waits for bytes and returns at most `bytes_max` of them; b"" at the end of the stream."""
        return await self._readiness.run(_READ, self._stream.read, bytes_max)

    async def readinto(self, into):
        """Waits for bytes and reads them into a buffer. Returns their number; 0 at the end of the stream."""
        return await self._readiness.run(_READ, self._stream.readinto, into)

    async def write_all(self, data):
        """Writes all bytes. They arrive at the peer without further calls."""
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[await self._readiness.run(_WRITE, self._stream.write, rest) :]

    async def shutdown(self):
        """Ends the outgoing direction. This end can still read."""
        await self._readiness.run(_WRITE, self._stream.shutdown)

    async def close(self, timeout=10.0):
        """Closes the stream: ends the outgoing direction and waits, at most `timeout` seconds, until the written bytes
        have arrived."""
        self._readiness.end()
        await asyncio.to_thread(self._stream.close, timeout)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_exception):
        await self.close()


class AsyncListener:
    """A listener, which accepts byte streams."""

    def __init__(self, address):
        self._listener = _farcall.Listener(address, _farcall.Options(nonblocking=True))
        self._readiness = _Readiness(self._listener)
        self.address = self._listener.address

    async def accept(self):
        """Waits for a stream and accepts it."""
        return AsyncStream(await self._readiness.run(_READ, self._listener.accept))

    async def close(self):
        """Closes the listener. Accepted streams remain open."""
        self._readiness.end()
        self._listener.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_exception):
        await self.close()
