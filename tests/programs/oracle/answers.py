"""An answer before a close that resets the connection: the peer reads the answer, and then hears of the reset."""
from transcript import *

ANSWER = b"413 too large"


def asked(family=socket.AF_INET):
    """A connection whose server has a request that it does not read."""
    client, server = pair(family)
    client.sendall(b"request")
    settled(server, "IN")
    return client, server


def linger(sock, seconds):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))


def heard(name, client):
    print(f"{name}: {settled(client, 'ERR|HUP')}")
    print("   ", outcome(client.recv, 100), outcome(client.recv, 100), outcome(client.recv, 100))


def close_shut(how):
    def close(sock):
        sock.shutdown(how)
        sock.close()
    return close


def close_lingering(seconds):
    def close(sock):
        linger(sock, seconds)
        sock.close()
    return close


def close_duplicates(sock):
    duplicates = [sock.dup() for _ in range(3)]
    sock.close()
    for duplicate in duplicates[1:]:
        duplicate.close()
    delivered()
    print("one is left:", events(mask_of(duplicates[0])))
    duplicates[0].close()


def dissolve(sock):
    call("connect", sock.fileno(), struct.pack("H14x", socket.AF_UNSPEC), 16)


for family in socket.AF_INET, socket.AF_INET6:
    client, server = asked(family)
    server.sendall(ANSWER)
    server.close()
    heard("close", client)

for name, close in [
    ("after shutdown of writing", close_shut(socket.SHUT_WR)),
    ("after shutdown of reading", close_shut(socket.SHUT_RD)),
    ("after shutdown of both", close_shut(socket.SHUT_RDWR)),
    # It does not wait.
    ("lingering", close_lingering(3600)),
    ("lingering for no time", close_lingering(0)),
    ("duplicates", close_duplicates),
    ("disconnected", dissolve),
]:
    client, server = asked()
    server.sendall(ANSWER)
    close(server)
    heard(name, client)

# Without a request SO_LINGER 0 and a disconnect reset as well.
for name, close in ("reset", reset), ("disconnected without a request", dissolve):
    client, server = pair()
    server.sendall(ANSWER)
    close(server)
    heard(name, client)

# In several writes.
client, server = asked()
server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for part in ANSWER[:4], ANSWER[4:8], ANSWER[8:]:
    server.sendall(part)
server.close()
settled(client, "ERR|HUP")
print("several writes:", receive_exactly(client, len(ANSWER)), outcome(client.recv, 100))

# A part of the request was read, or looked at.
for flags in 0, socket.MSG_PEEK:
    client, server = asked()
    server.recv(3 if flags == 0 else 100, flags)
    server.sendall(ANSWER)
    server.close()
    heard("a part was read" if flags == 0 else "the request was looked at", client)

# The request comes after the close.
client, server = pair()
server.sendall(ANSWER)
server.close()
settled(client, "RDHUP")
client.sendall(b"request")
heard("a request after the close", client)

# Its process ends.
for status in 0, 9:
    client, server = asked()
    child = os.fork()
    if child == 0:
        server.sendall(ANSWER)
        if status:
            os.kill(os.getpid(), status)
        os._exit(0)
    server.close()
    os.waitpid(child, 0)
    heard("its process ended" if status == 0 else "its process was killed", client)

# More than the peer has room for.
client, server = asked()
n = fill(server)
server.close()
settled(client, "ERR|HUP")
received = 0
error = None
while error is None:
    part = outcome(client.recv, 1 << 20)
    error = part if isinstance(part, str) else None
    received += 0 if error else len(part)
print("more than there is room for:", 0 < received < n, error)
