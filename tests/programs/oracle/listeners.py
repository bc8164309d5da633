"""Backlog, SO_REUSEPORT, and the order of accept."""
from transcript import *

# Everybody up to the backlog gets in without accept.
waiting = listener(backlog=20)
clients = []
for _ in range(20):
    c = socket.socket()
    c.settimeout(30)
    c.connect(waiting.getsockname())
    c.sendall(struct.pack("I", len(clients)))
    clients.append(c)
print("connected without accept:", len(clients), settled(waiting, "IN"))
order = []
names = []
for _ in clients:
    accepted, peer = waiting.accept()
    order.append(struct.unpack("I", receive_exactly(accepted, 4))[0])
    names.append(peer)
print("in order:", order == list(range(20)), names == [c.getsockname() for c in clients])

# Beyond it connects wait, and get in when there is room.
waiting = listener(backlog=1)
late = []
for _ in range(4):
    c = socket.socket()
    c.setblocking(False)
    outcome(c.connect, waiting.getsockname())
    late.append(c)
eventually(lambda: any(mask_of(c) & POLL["OUT"] for c in late))
time.sleep(0.2)
print("not all at once:", sum(bool(mask_of(c) & POLL["OUT"]) for c in late) < 4)
waiting.settimeout(40)
got = [waiting.accept()[0] for _ in range(4)]
print("all in the end:", len(got))

# SO_REUSEPORT.
group = []
port = 0
for _ in range(4):
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    port = sock.getsockname()[1]
    sock.listen(256)
    group.append(sock)
outsider = socket.socket()
show("bind without it", outsider.bind, ("127.0.0.1", port))
clients = []
for _ in range(200):
    c = socket.socket()
    c.connect(("127.0.0.1", port))
    clients.append(c)
for sock in group:
    sock.setblocking(False)


def taken(socks, count):
    """Accepts so many connections of these listeners; how many of each."""
    counts = [0] * len(socks)

    def take():
        for n, sock in enumerate(socks):
            while not isinstance(outcome(sock.accept), str):
                counts[n] += 1
        return sum(counts) == count

    eventually(take)
    return counts


counts = taken(group, 200)
print("spread:", sum(counts), all(n > 10 for n in counts))
group[0].close()
for _ in range(20):
    c = socket.socket()
    c.settimeout(30)
    c.connect(("127.0.0.1", port))
print("after one closed the others get all:", sum(taken(group[1:], 20)))

# Close and open again at once: TIME-WAIT is no obstacle with SO_REUSEADDR.
waiting = socket.socket()
waiting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
waiting.bind(("127.0.0.1", 0))
waiting.listen()
address = waiting.getsockname()
c = socket.socket()
c.connect(address)
accepted, _ = waiting.accept()
accepted.close()
c.recv(1)
c.close()
waiting.close()
time.sleep(0.1)
plain = socket.socket()
show("in TIME-WAIT, without SO_REUSEADDR", plain.bind, address)
again = socket.socket()
again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
show("with it", again.bind, address)
show("listen", again.listen)
c = socket.socket()
show("connect", c.connect, address)

# Connections of a closed listener go on.
waiting = listener()
c = socket.socket()
c.connect(waiting.getsockname())
accepted, _ = waiting.accept()
waiting.close()
accepted.sendall(b"goes on")
show("received", c.recv, 10)
show("new ones are refused", socket.socket().connect, accepted.getsockname())
