"""`server PORT`: an asyncio echo server. `client HOST PORT N`: N connections at once, each checks its echo."""
import asyncio
import os
import sys


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve(port):
    server = await asyncio.start_server(echo, "0.0.0.0", port, backlog=512)
    async with server:
        await server.serve_forever()


async def one(host, port, size):
    reader, writer = await asyncio.open_connection(host, port)
    sent = os.urandom(size)
    writer.write(sent)
    writer.write_eof()
    got = await reader.read(-1)
    writer.close()
    assert got == sent, f"{len(got)} of {len(sent)} bytes came back right"


async def clients(host, port, n):
    await asyncio.gather(*(one(host, port, 1000 * (i % 200) + 1) for i in range(n)))
    print("all echoed")


if sys.argv[1] == "server":
    asyncio.run(serve(int(sys.argv[2])))
else:
    asyncio.run(clients(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
