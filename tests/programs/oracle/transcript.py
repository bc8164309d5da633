"""What the oracle programs share: lines that are the same on every run, and sockets to talk about.

What a stack may choose (ephemeral ports, sizes of buffers, times) is not printed. What happens on
its own time (a reset that travels) is waited for, with `settled`, before it is looked at.
"""
import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
import time

os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # For the programs it starts.
sys.stdout.reconfigure(line_buffering=True)
signal.alarm(50)  # A hang ends the program; what it said so far tells where.

libc = ctypes.CDLL(None, use_errno=True)

POLL = {"IN": 1, "PRI": 2, "OUT": 4, "ERR": 8, "HUP": 16, "NVAL": 32, "RDHUP": 0x2000}


def errno_name(error):
    if error.errno == errno.EOPNOTSUPP:
        return "EOPNOTSUPP"  # Python knows it by its other name.
    return errno.errorcode.get(error.errno, type(error).__name__)


def outcome(action, *args):
    """What a call returned, or the name of its errno."""
    try:
        return action(*args)
    except OSError as error:
        return errno_name(error)


def show(name, action, *args):
    """Prints the outcome of a call."""
    value = outcome(action, *args)
    print(f"{name}: {value}" if isinstance(value, str) else f"{name}: {value!r}")


def call(name, *args):
    """A function of the C library; OSError when it returns -1."""
    value = getattr(libc, name)(*args)
    if value == -1:
        raise OSError(ctypes.get_errno(), name)
    return value


def loopback(family):
    return "127.0.0.1" if family == socket.AF_INET else "::1"


def listener(family=socket.AF_INET, backlog=16):
    sock = socket.socket(family)
    sock.bind((loopback(family), 0))
    sock.listen(backlog)
    return sock


def pair(family=socket.AF_INET):
    """A connection: the end that connected, the end that was accepted."""
    server = listener(family)
    client = socket.socket(family)
    client.connect(server.getsockname())
    accepted, _ = server.accept()
    server.close()
    return client, accepted


def datagrams(family=socket.AF_INET):
    """Two bound UDP sockets."""
    first, second = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family, socket.SOCK_DGRAM)
    first.bind((loopback(family), 0))
    second.bind((loopback(family), 0))
    return first, second


def events(mask):
    return "|".join(name for name, bit in POLL.items() if mask & bit) or "none"


def mask_of(fd, timeout_ms=0):
    """What poll says about one descriptor, asked for everything."""
    poll = select.poll()
    poll.register(fd, POLL["IN"] | POLL["PRI"] | POLL["OUT"] | POLL["RDHUP"])
    ready = poll.poll(timeout_ms)
    return ready[0][1] if ready else 0


def settled(fd, wanted, limit=30.0):
    """Waits until poll reports the named events at least; returns everything that it reports."""
    bits = sum(POLL[name] for name in wanted.split("|"))
    end = time.monotonic() + limit
    while (mask := mask_of(fd)) & bits != bits and time.monotonic() < end:
        time.sleep(0.002)
    return events(mask)


def eventually(condition, limit=30.0):
    """Whether it comes true within the limit."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def in_time(took, most):
    """Whether it took no longer, where that is judged: on a machine that has nothing else to do."""
    return took < most or "TOWPATH_JUDGE_TIME" not in os.environ


def delivered():
    """Returns when what was sent over loopback has arrived: what Linux does in the call that sends, Towpath
    does in turns, and each of these questions is answered in a turn of its own. Of several shards each has turns, and
    its share of the sockets: of 16, the most that there are, one for each."""
    socks = [socket.socket() for _ in range(16)]
    for _ in range(8):
        for sock in socks:
            sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    for sock in socks:
        sock.close()


def receive_all(sock):
    """Everything up to the end."""
    parts = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)


def receive_exactly(sock, n):
    parts = []
    while n and (part := sock.recv(n)):
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


def reset(sock):
    """Closes with a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def fill(sock):
    """Sends until the buffers are full; returns the number of bytes."""
    sock.setblocking(False)
    total = 0
    quiet = 0
    while quiet < 60:
        try:
            total += sock.send(b"x" * 65536)
            quiet = 0
        except BlockingIOError:
            quiet += 1
            time.sleep(0.005)
    sock.setblocking(True)
    return total
