"""A server of remote calls and a client of it, for asyncio: method 1 answers with what it was sent."""

import asyncio

import farcall


async def handle(method, request):
    if method != 1:
        raise farcall.Refusal(7, "only method 1 here")
    return request


async def main():
    async with farcall.AsyncServer("127.0.0.1:0", handle) as server:
        client = await farcall.AsyncClient.connect(server.address)
        reply = await client.call(1, b"hello")
        print(bytes(reply).decode())


asyncio.run(main())
