"""TCP_CORK, MSG_MORE, TCP_NODELAY: what arrives, and not how it was cut."""
from transcript import *

CORK = (socket.IPPROTO_TCP, socket.TCP_CORK)
client, server = pair()
client.setsockopt(*CORK, 1)
for word in b"head ", b"body ", b"tail":
    client.send(word)
client.setsockopt(*CORK, 0)
print("uncorked:", receive_exactly(server, 14))
client.setsockopt(*CORK, 1)
client.send(b"held")
print("held for a while, then sent by itself:", receive_exactly(server, 4))
client.send(b"x" * 100_000)
got = receive_exactly(server, 90_000)
client.setsockopt(*CORK, 0)
print("full segments go at once:", len(got) + len(receive_exactly(server, 10_000)))
client.setsockopt(*CORK, 1)
client.send(b"corked at the end")
client.close()
print("close sends it:", receive_all(server))

client, server = pair()
client.send(b"more ", socket.MSG_MORE)
client.send(b"and more ", socket.MSG_MORE)
client.send(b"and done")
print("MSG_MORE:", receive_exactly(server, 22))
client.send(b"more", socket.MSG_MORE)
client.shutdown(socket.SHUT_WR)
print("shutdown sends it:", receive_all(server))

for flags in 0, socket.MSG_MORE:
    client, server = pair()
    client.setsockopt(*CORK, int(not flags))
    client.send(b"pending", flags)
    start = time.monotonic()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print("TCP_NODELAY flushes:", receive_exactly(server, 7), in_time(time.monotonic() - start, 0.15))
    client.send(b"held", flags)
    print("and later bytes arrive, too:", receive_exactly(server, 4))

client, server = pair()
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
start = time.monotonic()
for i in range(200):
    client.send(b"ping")
    receive_exactly(server, 4)
    server.send(b"pong")
    receive_exactly(client, 4)
print("ping-pong is not delayed:", in_time(time.monotonic() - start, 3))
client, server = pair()
for i in range(1000):
    client.send(b"%04d" % i)
client.close()
print("small ones in order:", receive_all(server) == b"".join(b"%04d" % i for i in range(1000)))

# UDP: MSG_MORE makes one datagram.
first, second = datagrams()
first.connect(second.getsockname())
show("udp MSG_MORE", first.send, b"one ", socket.MSG_MORE)
show("udp the rest", first.send, b"datagram")
show("udp received", second.recv, 100)
