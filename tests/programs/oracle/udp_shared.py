"""UDP sockets on one port, and a socket whose buffer is full."""
from transcript import *

# What does not fit is lost, and what fits arrives whole and in order.
first, second = datagrams()
second.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20000)
for i in range(200):
    first.sendto(struct.pack("I", i) + b"z" * 996, second.getsockname())
time.sleep(0.2)
delivered()
got = []
while True:
    data = outcome(second.recv, 2000, socket.MSG_DONTWAIT)
    if isinstance(data, str):
        break
    got.append((struct.unpack("I", data[:4])[0], len(data)))
print("some are lost:", 0 < len(got) < 200, "in order:", got == sorted(got), "whole:", all(n == 1000 for _, n in got))
show("it goes on", lambda: (first.sendto(b"later", second.getsockname()), second.recv(10))[1])

# The more specific one gets it.
wild, exact = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
for sock in wild, exact:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
wild.bind(("0.0.0.0", 0))
port = wild.getsockname()[1]
exact.bind(("127.0.0.1", port))
first.sendto(b"to one", ("127.0.0.1", port))
first.sendto(b"to two", ("127.0.0.2", port))
print("exact:", exact.recv(10), "wild:", wild.recv(10))
exact.connect(("127.0.0.1", 9))
first.sendto(b"unconnected peer", ("127.0.0.1", port))
print("connected to another, wild:", wild.recv(20))

# SO_REUSEPORT spreads flows, and one flow stays with one socket.
group = []
port = 0
for _ in range(4):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    port = sock.getsockname()[1]
    group.append(sock)
senders = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(100)]
for sender in senders:
    for _ in range(3):
        sender.sendto(b"x", ("127.0.0.1", port))
where = {}


def all_came():
    for index, sock in enumerate(group):
        while isinstance(got := outcome(sock.recvfrom, 10, socket.MSG_DONTWAIT), tuple):
            where.setdefault(got[1], []).append(index)
    return sum(map(len, where.values())) == 300


eventually(all_came)
print("flows:", len(where), "each on one socket:", all(len(set(v)) == 1 for v in where.values()),
      "none lost:", sum(map(len, where.values())), "spread:", len({v[0] for v in where.values()}))
other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
show("without the option", other.bind, ("127.0.0.1", port))
