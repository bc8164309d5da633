"""Who may bind beside whom: every pair of addresses and ways to share, for TCP and UDP."""
import itertools
from transcript import *

SOL, V4, V6 = socket.SOL_SOCKET, socket.AF_INET, socket.AF_INET6
PLACES = {"127.0.0.1": (V4, "127.0.0.1", None), "127.0.0.2": (V4, "127.0.0.2", None), "0.0.0.0": (V4, "0.0.0.0", None),
          ":: dual": (V6, "::", 0), ":: only": (V6, "::", 1), "::1": (V6, "::1", None), "mapped": (V6, "::ffff:127.0.0.1", 0)}
SHARING = {"": (), "addr": (socket.SO_REUSEADDR,), "port": (socket.SO_REUSEPORT,), "both": (socket.SO_REUSEADDR, socket.SO_REUSEPORT)}


def make(kind, place, sharing, port):
    family, host, only = PLACES[place]
    sock = socket.socket(family, kind)
    for option in SHARING[sharing]:
        sock.setsockopt(SOL, option, 1)
    if only is not None:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
    sock.bind((host, port))
    return sock


for kind, listening in (socket.SOCK_STREAM, False), (socket.SOCK_STREAM, True), (socket.SOCK_DGRAM, False):
    for first, second in itertools.product(PLACES, PLACES):
        line = []
        for one, two in itertools.product(SHARING, SHARING):
            a = make(kind, first, one, 0)
            if listening:
                a.listen()
            b = outcome(make, kind, second, two, a.getsockname()[1])
            word = "no" if b == "EADDRINUSE" else b
            if not isinstance(b, str):
                word = "yes"
                if kind == socket.SOCK_STREAM and outcome(b.listen) == "EADDRINUSE":
                    word = "bind"
                b.close()
            a.close()
            line.append(f"{one}/{two} {word}")
        print(kind.name, "listening" if listening else "", first, "|", second, ":", ", ".join(line))

# The port of a connection whose listener is gone, and of one in TIME-WAIT.
for sharing in SHARING:
    for again in SHARING:
        server = make(socket.SOCK_STREAM, "127.0.0.1", sharing, 0)
        server.listen()
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        server.close()
        results = []
        for step in "established", "in TIME-WAIT":
            sock = outcome(make, socket.SOCK_STREAM, "127.0.0.1", again, port)
            results.append(sock if isinstance(sock, str) else outcome(sock.listen) or "ok")
            if not isinstance(sock, str):
                sock.close()
            if step == "established":
                accepted.close()
                settled(client, "RDHUP")
                client.close()
                delivered()
        print(f"{sharing}/{again}", *results)

# A connection from a bound port, twice.
one, two = listener(), listener()
for sharing in SHARING:
    a = make(socket.SOCK_STREAM, "127.0.0.1", sharing, 0)
    a.connect(one.getsockname())
    b = outcome(make, socket.SOCK_STREAM, "127.0.0.1", sharing, a.getsockname()[1])
    if isinstance(b, str):
        print(f"{sharing}: second bind {b}")
        continue
    show(f"{sharing}: same peer", b.connect, one.getsockname())
    b = make(socket.SOCK_STREAM, "127.0.0.1", sharing, a.getsockname()[1])
    show(f"{sharing}: other peer", b.connect, two.getsockname())
