"""SO_LINGER: values, and what close waits for."""
from transcript import *


def linger(sock):
    return struct.unpack("ii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))


def took(action):
    start = time.monotonic()
    action()
    return time.monotonic() - start


client, server = pair()
print("default:", linger(client))
client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
print("set:", linger(client))
client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 7, 2))
print("any number is on:", linger(client))
show("too short", client.setsockopt, socket.SOL_SOCKET, socket.SO_LINGER, 1)
client.sendall(b"all of it")
print("close that lingers is quick when the peer acknowledges:", in_time(took(client.close), 0.5))
print("and nothing is lost:", receive_all(server))

client, server = pair()
fill(client)
client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1))
print("close waits when it does not:", 0.8 < (waited := took(client.close)), in_time(waited, 3))

client, server = pair()
n = fill(client)
print("close without linger does not wait:", in_time(took(client.close), 0.3))
print("and everything arrives:", len(receive_all(server)) == n)

client, server = pair()
client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 9))
print("off has no time:", linger(client))

waiting = listener()
waiting.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 7))
c = socket.socket()
c.connect(waiting.getsockname())
print("inherited by accept:", linger(waiting.accept()[0]))
