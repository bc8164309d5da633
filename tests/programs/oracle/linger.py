"""SO_LINGER: values, and what close waits for."""
import threading

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


def lingers(name, state, seconds=1):
    """Whether close of a socket that does not block waits in a state."""
    client, server = pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    state(client, server)
    client.setblocking(False)
    waited = took(client.close)
    print(f"not blocking, {name}: waits:", waited > 0.8 * (seconds or 1), in_time(waited, seconds + 2))
    return server


def shut_down(client, server):
    fill(client)
    client.shutdown(socket.SHUT_WR)


def shut_by_peer(client, server):
    fill(client)
    server.shutdown(socket.SHUT_WR)
    client.setblocking(True)
    client.recv(1)


def unread(client, server):
    fill(client)
    server.sendall(b"never read")
    select.select([client], [], [])


server = lingers("not acknowledged", lambda client, server: fill(client))
print("all of it arrives later:", len(receive_all(server)) > 0)
lingers("after shutdown", shut_down)
lingers("after the peer's end", shut_by_peer)
lingers("with unread bytes", unread)
lingers("all acknowledged", lambda client, server: client.sendall(b"x"))
server = lingers("no time", lambda client, server: fill(client), 0)
show("which resets", lambda: receive_all(server) and None)

quick = {"unconnected": socket.socket(), "listener": listener(), "datagrams": socket.socket(type=socket.SOCK_DGRAM)}
for name, sock in quick.items():
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 5))
    print(f"{name}: waits:", took(sock.close) > 1)

client, server = pair()
fill(client)
client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 2))
copy = client.dup()
print("not the last descriptor: waits:", took(client.close) > 1)
other, peer = pair()
thread = threading.Thread(target=copy.close)
thread.start()
worst = 0


def talk():
    other.sendall(b"x")
    peer.recv(1)
    a, b = pair()
    a.close()
    b.close()


while thread.is_alive():
    worst = max(worst, took(talk))
    time.sleep(0.005)
print("others go on meanwhile:", in_time(worst, 0.8))
