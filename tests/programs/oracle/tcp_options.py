"""Options of TCP in every state of a socket, what connections inherit, and TCP_INFO."""
from transcript import *

SOL, TCP, IP = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP
OPTIONS = {"NODELAY": (TCP, 1, 1), "CORK": (TCP, 3, 1), "KEEPIDLE": (TCP, 4, 100), "KEEPINTVL": (TCP, 5, 20),
           "KEEPCNT": (TCP, 6, 4), "LINGER2": (TCP, 8, 20), "DEFER_ACCEPT": (TCP, 9, 3), "USER_TIMEOUT": (TCP, 18, 5000),
           "NOTSENT_LOWAT": (TCP, 25, 0), "INQ": (TCP, 36, 1), "PRIORITY": (SOL, 12, 3), "TOS": (IP, 1, 0x10),
           "TTL": (IP, 2, 33), "RCVLOWAT": (SOL, 18, 10), "OOBINLINE": (SOL, 10, 1), "RECVTOS": (IP, 13, 1),
           "BIND_NO_PORT": (IP, 24, 1), "FREEBIND": (IP, 15, 1), "MTU_DISCOVER": (IP, 10, 3), "RECVERR": (IP, 11, 1)}


def each(what, sock, set_too=True):
    print("--", what)
    for name, (level, option, value) in OPTIONS.items():
        before = outcome(sock.getsockopt, level, option)
        done = outcome(sock.setsockopt, level, option, value) if set_too else None
        after = outcome(sock.getsockopt, level, option)
        print(f"{name}: {before} set {value} {done}: {after}")


def pending(sock):
    return outcome(sock.getsockopt, SOL, socket.SO_ERROR)


each("fresh", socket.socket())
server = listener()
each("listener", server)
client = socket.socket()
client.connect(server.getsockname())
client.send(b"not deferred")
accepted, _ = server.accept()
each("accepted", accepted, False)
client, accepted = pair()
each("connected", client)
accepted.close()
settled(client, "RDHUP")
client.close()
client, accepted = pair()
reset(accepted)
settled(client, "HUP")
each("reset", client)
for sock in socket.socket(), client:
    for value in -1, 0, 1, 2, 87, 88, 32767, 32768, 70000:
        print(f"MAXSEG {value}:", outcome(sock.setsockopt, TCP, 2, value), sock.getsockopt(TCP, 2) if 88 <= value < 32768 else "")
    for value in -1, 0, 1, 127, 128:
        show(f"SYNCNT {value}", sock.setsockopt, TCP, 7, value)
    for value in -5, -1, 0, 1, 59, 120, 121, 1000:
        print(f"LINGER2 {value}:", outcome(sock.setsockopt, TCP, 8, value), sock.getsockopt(TCP, 8))
    for value in -1, 0, 1, 2, 3, 4, 7, 8, 60, 1000:
        print(f"DEFER_ACCEPT {value}:", outcome(sock.setsockopt, TCP, 9, value), sock.getsockopt(TCP, 9))

# TCP_INFO of a connection that carried a little.
client, accepted = pair()
for n in range(3):
    client.send(b"ping!")
    print(accepted.recv(10))
    accepted.send(b"pong")
    print(client.recv(10))
eventually(lambda: accepted.getsockopt(TCP, 11, 28)[24] == 0)


def info(sock):
    raw = sock.getsockopt(TCP, 11, 240)
    word = lambda at: struct.unpack_from("I", raw, at)[0]
    long = lambda at: struct.unpack_from("Q", raw, at)[0]
    print("state", raw[0], "ca", raw[1], "retransmits", raw[2], "probes", raw[3], "backoff", raw[4],
          "unacked", word(24), "sacked", word(28), "lost", word(32), "retrans", word(36), "total", word(100),
          "received", long(128), "sent", long(200), "again", long(208),
          "notsent", word(144), "data in", word(152), "data out", word(156), "out of order", word(224))
    options = raw[5]
    print("timestamps", options & 1, "sack", options >> 1 & 1, "wscale", options >> 2 & 1, "ecn", options >> 3 & 3)
    print("rto sane", 200_000 <= word(8) <= 1_000_000, "rtt", 0 < word(68) < 100_000, "cwnd", word(80) >= 10, "mss", word(16) > 500)
    print("length", len(raw), len(sock.getsockopt(TCP, 11, 104)), len(sock.getsockopt(TCP, 11, 1)))


info(client)
info(accepted)
show("CONGESTION", lambda: len(client.getsockopt(TCP, 13, 64)))
show("CONGESTION cut", lambda: len(client.getsockopt(TCP, 13, 3)))
show("ULP", client.getsockopt, TCP, 31, 16)
show("no such ULP", client.setsockopt, TCP, 31, b"no-such")

# TCP_INQ: what is left to be read.
client.setsockopt(TCP, 36, 1)
accepted.send(b"0123456789")
settled(client, "IN")
for size in 3, 3, 10:
    data, ancillary, flags, _ = client.recvmsg(size, 100)
    print("INQ:", data, flags, [(level, kind, struct.unpack("i", value)[0]) for level, kind, value in ancillary])
# The end of the stream counts as one more.
accepted.send(b"0123456789")
accepted.shutdown(socket.SHUT_WR)
settled(client, "RDHUP")
for size in 3, 7, 1, 1:
    data, ancillary, flags, _ = client.recvmsg(size, 100)
    print("INQ at the end:", data, [struct.unpack("i", value)[0] for _, _, value in ancillary])
client, accepted = pair()
client.setsockopt(TCP, 36, 0)
accepted.send(b"more")
print("no INQ:", client.recvmsg(10, 100)[:2])
show("INQ 2", client.setsockopt, TCP, 36, 2)

# Of a listener: connections that wait, and the backlog.
waiting = listener(backlog=64)
clients = [socket.create_connection(waiting.getsockname()) for _ in range(3)]
eventually(lambda: struct.unpack_from("I", waiting.getsockopt(TCP, 11, 28), 24)[0] == 3)
for _ in range(2):
    raw = waiting.getsockopt(TCP, 11, 240)
    print("listener:", [(at, raw[at]) for at in range(8) if raw[at]],
          [(at, value) for at, value in zip(range(8, 240, 4), struct.unpack_from("58I", raw, 8)) if value])
    waiting.accept()
