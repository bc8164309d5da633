"""connect to AF_UNSPEC and shutdown of listeners: a stream socket is unconnected again, and of use."""
from transcript import *

SO_ERROR = (socket.SOL_SOCKET, socket.SO_ERROR)
NOSIGNAL = socket.MSG_NOSIGNAL


def dissolve(sock):
    return outcome(call, "connect", sock.fileno(), struct.pack("H14x", socket.AF_UNSPEC), 16)


def bound():
    """Bound to a port by its number: a port that bind chose is not kept."""
    probe = socket.socket()
    probe.bind(("127.0.0.1", 0))
    name = probe.getsockname()
    probe.close()
    sock = socket.socket()
    sock.bind(name)
    return sock


def exchange(client, server):
    accepted, _ = server.accept()
    client.sendall(b"ping")
    accepted.sendall(receive_exactly(accepted, 4) + b" pong")
    return receive_exactly(client, 9)


fresh = socket.socket()
print("fresh:", dissolve(fresh), events(mask_of(fresh)))

server = listener()
sock = socket.socket()
sock.connect(server.getsockname())
accepted, _ = server.accept()
accepted.sendall(b"unread")
settled(sock, "IN")
print("connected:", dissolve(sock))
print("mask:", events(mask_of(sock)))
show("SO_ERROR", sock.getsockopt, *SO_ERROR)
print("mask:", events(mask_of(sock)))
print("name:", sock.getsockname()[0])
show("peer", sock.getpeername)
show("recv", sock.recv, 10)
show("send", sock.send, b"x", NOSIGNAL)
print("the other end:", settled(accepted, "ERR|HUP"), outcome(accepted.recv, 1))
show("connect again", sock.connect, server.getsockname())
print("it works:", exchange(sock, server))
print("once more:", dissolve(sock), outcome(sock.connect, server.getsockname()), exchange(sock, server))

# A bound one keeps its name, and can reach the same peer.
sock = bound()
name = sock.getsockname()
sock.connect(server.getsockname())
accepted, _ = server.accept()
print("bound:", dissolve(sock), sock.getsockname() == name)
settled(accepted, "ERR|HUP")
show("connect again", sock.connect, server.getsockname())
print("it works:", exchange(sock, server), sock.getsockname() == name)

# After shutdown, after the peer's end, and after a reset.
sock = socket.socket()
sock.connect(server.getsockname())
accepted, _ = server.accept()
sock.shutdown(socket.SHUT_WR)
print("shut down:", dissolve(sock), outcome(sock.connect, server.getsockname()))
accepted, _ = server.accept()
show("it sends again", sock.send, b"again")
show("received", accepted.recv, 10)
accepted.close()
settled(sock, "RDHUP")
print("the peer ended:", dissolve(sock), outcome(sock.connect, server.getsockname()), exchange(sock, server))
sock.connect_ex(server.getsockname())
dissolve(sock)
sock.connect(server.getsockname())
accepted, _ = server.accept()
reset(accepted)
settled(sock, "ERR|HUP")
show("after a reset, connect", sock.connect, server.getsockname())
print("after a reset:", dissolve(sock), outcome(sock.connect, server.getsockname()), exchange(sock, server))

# A connect under way.
full = listener(backlog=0)
waiting = []
for _ in range(4):
    s = socket.socket()
    s.setblocking(False)
    outcome(s.connect, full.getsockname())
    waiting.append(s)
time.sleep(0.1)
last = waiting[-1]
print("pending:", dissolve(last), events(mask_of(last)))
last.setblocking(True)
show("connect elsewhere", last.connect, server.getsockname())
print("it works:", exchange(last, server))

# A listener listens no more, resets who waits in its queue, and can listen again.
for stop in dissolve, lambda s: outcome(s.shutdown, socket.SHUT_RD), lambda s: outcome(s.shutdown, socket.SHUT_RDWR):
    server = bound()
    server.listen()
    first = socket.socket()
    first.connect(server.getsockname())
    name = server.getsockname()
    print("listener stopped:", stop(server), events(mask_of(server)))
    print("who waited:", settled(first, "ERR|HUP"))
    show("accept", server.accept)
    show("connect", socket.socket().connect, name)
    print("name:", server.getsockname() == name)
    show("listen again", server.listen)
    sock = socket.socket()
    show("connect", sock.connect, name)
    print("it works:", exchange(sock, server))
show("shut write", server.shutdown, socket.SHUT_WR)
sock = socket.socket()
sock.connect(server.getsockname())
print("listens still:", exchange(sock, server))
print("and can connect once stopped:", dissolve(server))
other = listener()
show("connect", server.connect, other.getsockname())
print("it works:", exchange(server, other))
