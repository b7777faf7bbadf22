"""Tests of the package against servers in Rust. Run with python -m unittest; FARCALL_SERVERS is the path of the example
program `servers` of the package farcall."""

import asyncio
import gc
import os
import pathlib
import subprocess
import sys
import threading
import unittest

import farcall
from farcall import Code, Error, Options

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATIENCE_SECONDS = 60


class WithServers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.process = subprocess.Popen(
            [os.environ["FARCALL_SERVERS"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        cls.kv, cls.rpc, cls.stream = cls.process.stdout.readline().split()

    @classmethod
    def tearDownClass(cls):
        cls.process.communicate(timeout=PATIENCE_SECONDS)

    def assert_fails(self, code, call, *arguments, **named):
        with self.assertRaises(Error) as raised:
            call(*arguments, **named)
        self.assertEqual(raised.exception.code, code, raised.exception)
        return raised.exception

    def run_async(self, coroutine):
        return asyncio.run(asyncio.wait_for(coroutine, PATIENCE_SECONDS))


class Store(WithServers):
    def test_items_of_a_store(self):
        with farcall.Kv(self.kv) as kv:
            self.assertIsNone(kv.get(b"a"))
            version = kv.put(b"a", bytearray(b"1"), flags=7)
            item = kv.get(memoryview(b"a"))
            self.assertEqual((item.value, item.version, item.flags), (b"1", version, 7))
            self.assert_fails(Code.NOT_STORED, kv.put, b"a", b"2", mode="add")
            self.assert_fails(Code.OTHER_VERSION, kv.compare_and_swap, b"a", b"2", version + 1)
            self.assertNotEqual(kv.compare_and_swap(b"a", b"2", version), version)
            kv.put(b"b", b"3")
            found = kv.get_many([b"b", b"none", b"a"])
            self.assertEqual([item and item.value for item in found], [b"3", None, b"2"])
            self.assertTrue(kv.touch(b"b", 60))
            self.assertTrue(kv.delete(b"b"))
            self.assertFalse(kv.delete(b"b"))
            self.assertFalse(kv.touch(b"b"))
            kv.put(b"short", b"lived", time_to_live=0.001)
            while kv.get(b"short") is not None:
                pass

    def test_failures_of_a_store_have_codes(self):
        kv = farcall.Kv(self.kv)
        error = self.assert_fails(Code.KEY, kv.get, b"k" * 251)
        self.assertIs(error.executed, False)
        self.assert_fails(Code.INVALID, kv.put, b"a", b"1", mode="other")
        self.assert_fails(Code.TOO_LARGE, kv.put, b"a", bytes(8 << 20))
        with self.assertRaises(TypeError):
            kv.get("a text is no key")
        kv.close()
        self.assertIn("closed", str(self.assert_fails(Code.INVALID, kv.get, b"a")))
        self.assert_fails(Code.UNREACHABLE, farcall.Kv, "127.0.0.1:1")
        self.assert_fails(Code.INVALID, farcall.Kv, self.kv, Options(preset="none"))
        self.assert_fails(Code.INVALID, Options, provider="none")
        self.assert_fails(Code.INVALID, Options, call_timeout=-1.0)

    def test_a_store_under_asyncio(self):
        async def main():
            async with await farcall.AsyncKv.connect(self.kv) as kv:
                versions = await asyncio.gather(*(kv.put(b"x%d" % n, b"%d" % n) for n in range(20)))
                self.assertEqual(len(versions), 20)
                found = await kv.get_many([b"x%d" % n for n in range(20)])
                self.assertEqual([int(item.value) for item in found], list(range(20)))
                self.assertTrue(await kv.delete(b"x0"))
                self.assertIsNone(await kv.get(b"x0"))

        self.run_async(main())


class Calls(WithServers):
    def test_results_are_lent(self):
        with farcall.Client(self.rpc) as client:
            reply = client.call(1, b"hello")
            self.assertIsInstance(reply, memoryview)
            self.assertTrue(reply.readonly)
            long = client.call(1, bytearray(b"x" * 300_000))
            self.assertEqual(reply, b"hello")
            del client
            gc.collect()
            self.assertEqual(bytes(long), b"x" * 300_000)

    def test_failures_of_calls_say_what_was_executed(self):
        client = farcall.Client(self.rpc)
        error = self.assert_fails(Code.APPLICATION, client.call, 2)
        self.assertEqual((error.application_code, error.executed), (42, True))
        self.assertIn("no", str(error))
        error = self.assert_fails(Code.OUTCOME_UNKNOWN, client.call, 3, timeout=0.05)
        self.assertIsNone(error.executed)
        self.assertEqual(client.call(1, b"again"), b"again")

    def test_an_object_in_use_says_so(self):
        seen = []

        def handle(_method, _request):
            # The handler runs, so the thread that waits for its result has released the GIL.
            seen.append(self.assert_fails(Code.BUSY, client.call, 1))

        with farcall.Server("127.0.0.1:0", handle) as server:
            client = farcall.Client(server.address)
            self.assertEqual(client.call(1), b"")
        self.assertEqual(len(seen), 1)

    def test_calls_under_asyncio(self):
        async def main():
            client = await farcall.AsyncClient.connect(self.rpc)
            replies = await asyncio.gather(*(client.call(1, b"%d" % n) for n in range(50)))
            self.assertEqual([int(bytes(reply)) for reply in replies], list(range(50)))
            with self.assertRaises(Error) as raised:
                await client.call(2)
            self.assertEqual(raised.exception.application_code, 42)
            with self.assertRaises(TimeoutError):
                await asyncio.wait_for(client.call(3), 0.01)
            # Method 3 takes longer than the timeout.
            with self.assertRaises(Error) as raised:
                await client.call(3, timeout=0.01)
            self.assertEqual(raised.exception.code, Code.TIMED_OUT)
            hurried = await farcall.AsyncClient.connect(self.rpc, Options(call_timeout=0.01))
            with self.assertRaises(Error) as raised:
                await hurried.call(3)
            self.assertEqual(raised.exception.code, Code.TIMED_OUT)
            self.assertEqual(await client.call(1, b"again", timeout=60), b"again")
            with self.assertRaises(Error) as raised:
                await farcall.AsyncClient.connect("127.0.0.1:1")
            self.assertEqual(raised.exception.code, Code.UNREACHABLE)

        self.run_async(main())

    def test_handlers_answer_refuse_and_raise(self):
        def handle(method, request):
            self.assertIsInstance(request, bytes)
            if method == 1:
                return memoryview(request)[::1]
            if method == 2:
                raise farcall.Refusal(9, "not today")
            if method == 3:
                return None
            raise KeyError("nothing here")

        with farcall.Server("127.0.0.1:0", handle, Options(threads=2)) as server:
            client = farcall.Client(server.address, Options(thread=1, preset="server-reply"))
            self.assertEqual(client.call(1, b"abc"), b"abc")
            self.assertEqual(client.call(3), b"")
            error = self.assert_fails(Code.APPLICATION, client.call, 2)
            self.assertEqual(error.application_code, 9)
            self.assertIn("not today", str(error))
            unraisable = []
            hook, sys.unraisablehook = sys.unraisablehook, unraisable.append
            try:
                error = self.assert_fails(Code.APPLICATION, client.call, 4)
            finally:
                sys.unraisablehook = hook
            self.assertEqual(error.application_code, 0)
            self.assertIn("nothing here", str(error))
            self.assertEqual(len(unraisable), 1)
        self.assert_fails(Code.UNREACHABLE, farcall.Client, server.address)

    def test_server_with_a_coroutine(self):
        async def main():
            async def handle(method, request):
                await asyncio.sleep(0)
                return request[::-1]

            async with farcall.AsyncServer("127.0.0.1:0", handle) as server:
                client = await farcall.AsyncClient.connect(server.address)
                self.assertEqual(await client.call(0, b"abc"), b"cba")

        self.run_async(main())

    def test_a_server_that_is_forgotten_ends(self):
        server = farcall.Server("127.0.0.1:0", lambda method, request: request)
        address = server.address
        self.assertEqual(farcall.Client(address).call(0, b"x"), b"x")
        del server
        gc.collect()
        self.assert_fails(Code.UNREACHABLE, farcall.Client, address)


class Streams(WithServers):
    def test_streams_read_and_write_buffers_in_place(self):
        with farcall.Stream(self.stream) as stream:
            self.assertEqual(stream.peer_address, self.stream)
            self.assertEqual(stream.path, "verbs")
            self.assert_fails(Code.INVALID, stream.fileno)
            stream.set_timeouts(read=0.01)
            self.assert_fails(Code.TIMED_OUT, stream.read, 10)
            self.assert_fails(Code.TIMED_OUT, stream.readinto, bytearray(5))
            stream.set_timeouts()
            self.assertEqual(stream.write(memoryview(bytearray(b"hello"))), 5)
            room, got = bytearray(10), 0
            while got < 5:
                got += stream.readinto(memoryview(room)[got:])
            self.assertEqual(room, b"hello\0\0\0\0\0")
            with self.assertRaises(BufferError):
                stream.readinto(b"never change")
            with self.assertRaises(BufferError):
                stream.write(memoryview(b"abcdef")[::2])
            sent = os.urandom(3_000_000)
            read = []
            for start in range(0, len(sent), 10_000):
                stream.write_all(sent[start : start + 10_000])
                left = min(10_000, len(sent) - start)
                while left:
                    read.append(stream.read(left))
                    left -= len(read[-1])
            self.assertEqual(b"".join(read), sent)
            stream.shutdown()
            self.assertEqual(stream.read(1), b"")
            self.assert_fails(Code.BROKEN_PIPE, stream.write, b"x")

    def test_both_ends(self):
        with farcall.Listener("127.0.0.1:0") as listener:
            accepted = []
            thread = threading.Thread(target=lambda: accepted.append(listener.accept()))
            thread.start()
            client = farcall.Stream(listener.address)
            thread.join()
            (server,) = accepted
            client.write_all(b"ping")
            self.assertEqual(server.read(100), b"ping")
            server.reset()
            self.assert_fails(Code.RESET, client.read, 1)
            client.reset()

    def test_both_directions_at_once_under_asyncio(self):
        async def main():
            sent = os.urandom(2_000_000)
            async with await farcall.AsyncStream.connect(self.stream) as stream:

                async def write():
                    await stream.write_all(sent)
                    await stream.shutdown()

                writing = asyncio.create_task(write())
                read = bytearray()
                while piece := await stream.read(65536):
                    read += piece
                await writing
                self.assertEqual(read, sent)

        self.run_async(main())

    def test_streams_under_asyncio(self):
        async def main():
            async with farcall.AsyncListener("127.0.0.1:0") as listener:

                async def serve(number):
                    async with await listener.accept() as stream:
                        room = bytearray(4)
                        count = await stream.readinto(room)
                        await stream.write_all(room[:count] + b"%d" % number)

                async def call(number):
                    async with await farcall.AsyncStream.connect(listener.address) as stream:
                        await stream.write_all(b"call")
                        return await stream.read(100)

                serving = [asyncio.create_task(serve(number)) for number in range(5)]
                replies = await asyncio.gather(*(call(number) for number in range(5)))
                await asyncio.gather(*serving)
                self.assertEqual(sorted(replies), [b"call%d" % number for number in range(5)])
                # A cancelled accept must not consume the next stream.
                with self.assertRaises(TimeoutError):
                    await asyncio.wait_for(listener.accept(), 0.01)
                serving = asyncio.create_task(serve(9))
                self.assertEqual(await call(9), b"call9")
                await serving

        self.run_async(main())


class Documented(WithServers):
    def test_examples_print_what_they_promise(self):
        for name, address in [("kv.py", self.kv), ("rpc.py", None), ("stream.py", self.stream)]:
            command = [sys.executable, ROOT / "examples" / name] + [address] * (address is not None)
            ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
            self.assertEqual((ended.stdout, ended.stderr), ("hello\n", ""), name)

    def test_the_document_shows_the_examples(self):
        document = (ROOT / "../../docs/c-and-python.md").read_text()
        for example in (ROOT / "examples").iterdir():
            self.assertIn(f"```python\n{example.read_text()}```\n", document, example.name)


if __name__ == "__main__":
    unittest.main()
