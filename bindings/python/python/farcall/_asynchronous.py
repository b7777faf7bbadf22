"""The forms for asyncio that are written in Python."""

import asyncio
import concurrent.futures

from . import _farcall

# Numbers of farcall.Code, which is made of the same list.
_WOULD_BLOCK = _farcall.CODES.index("WouldBlock")


class AsyncKv:
    """A client of a key-value store whose methods are those of Kv, to be awaited; a thread of its own waits for them."""

    def __init__(self, kv, thread):
        self._kv = kv
        self._thread = thread

    @classmethod
    async def connect(cls, address, options=None):
        """Connects."""
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
        """The item of a key, or None."""
        return await self._run(self._kv.get, key)

    async def get_many(self, keys):
        """The items of many keys, in their order, looked up at once."""
        return await self._run(self._kv.get_many, keys)

    async def put(self, key, value, *, flags=0, time_to_live=None, mode="set"):
        """Stores a value; returns its version."""
        return await self._run(self._kv.put, key, value, flags=flags, time_to_live=time_to_live, mode=mode)

    async def compare_and_swap(self, key, value, version, *, flags=0, time_to_live=None):
        """Stores a value if the item still has this version; returns its new one."""
        return await self._run(
            self._kv.compare_and_swap, key, value, version, flags=flags, time_to_live=time_to_live
        )

    async def delete(self, key, version=None):
        """Removes an item; returns whether there was one."""
        return await self._run(self._kv.delete, key, version)

    async def touch(self, key, time_to_live=None):
        """Sets how long an item lives from now on; returns whether there is one."""
        return await self._run(self._kv.touch, key, time_to_live)

    async def close(self):
        """Ends the client."""
        await self._run(self._kv.close)
        self._thread.shutdown(wait=False)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_exception):
        await self.close()


class AsyncServer:
    """A server of remote calls whose handler is a coroutine function, run in the loop that was running when it started.
    Each thread of the server waits for one of them at a time."""

    def __init__(self, address, handler, options=None):
        loop = asyncio.get_running_loop()

        def handle(method, request):
            return asyncio.run_coroutine_threadsafe(handler(method, request), loop).result()

        self._server = _farcall.Server(address, handle, options)
        self.address = self._server.address

    async def stop(self):
        """Finishes what came, then ends the threads."""
        await asyncio.to_thread(self._server.stop)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_exception):
        await self.stop()


_READ, _WRITE = 0, 1


class _Readiness:
    """Waits until the descriptor of a stream or a listener says that what would have blocked may go on. `ready` says of
    reading and of writing whether it would go on now."""

    def __init__(self, watched, ready=lambda: (False, False)):
        self._loop = asyncio.get_running_loop()
        self._fd = watched.fileno()
        self._ready = ready
        self._waiters = (set(), set())

    def end(self):
        """Wakes whoever waits; the descriptor is watched again when somebody waits again."""
        for waiters in self._waiters:
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
            waiters.clear()
        self._loop.remove_reader(self._fd)

    def _let_others_look(self):
        # A call may have taken what another one waits for. Without one the descriptor may be somebody else's by now.
        if any(self._waiters):
            self.end()

    def _wait(self, direction):
        waiter = self._loop.create_future()
        self._loop.add_reader(self._fd, self.end)
        self._waiters[direction].add(waiter)
        return waiter

    async def run(self, direction, call, *arguments):
        """Calls until it does not say that it would block."""
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
            # So may one that would block: then the descriptor has nothing to tell any more.
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
        """Waits for bytes and reads at most so many; none are the end."""
        return await self._readiness.run(_READ, self._stream.read, bytes_max)

    async def readinto(self, into):
        """Waits for bytes and reads them into a buffer; returns how many."""
        return await self._readiness.run(_READ, self._stream.readinto, into)

    async def write_all(self, data):
        """Writes all of it. What is written arrives without further calls."""
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[await self._readiness.run(_WRITE, self._stream.write, rest) :]

    async def shutdown(self):
        """Ends what this end writes; reading goes on."""
        await self._readiness.run(_WRITE, self._stream.shutdown)

    async def close(self, timeout=10.0):
        """Ends the stream and waits until what was written has arrived."""
        self._readiness.end()
        await asyncio.to_thread(self._stream.close, timeout)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_exception):
        await self.close()


class AsyncListener:
    """Accepts byte streams."""

    def __init__(self, address):
        self._listener = _farcall.Listener(address, _farcall.Options(nonblocking=True))
        self._readiness = _Readiness(self._listener)
        self.address = self._listener.address

    async def accept(self):
        """Waits for a stream."""
        return AsyncStream(await self._readiness.run(_READ, self._listener.accept))

    async def close(self):
        """Ends the listener; accepted streams go on."""
        self._readiness.end()
        self._listener.close()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_exception):
        await self.close()
