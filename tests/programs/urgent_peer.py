"""Urgent data between two programs: `serve PORT ROUNDS` and `call HOST PORT ROUNDS`. Each prints what it got."""
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time

SIOCATMARK = 0x8905
signals = []
signal.signal(signal.SIGURG, lambda *_: signals.append(1))
signal.alarm(60)


def at_mark(sock):
    return struct.unpack("i", fcntl.ioctl(sock, SIOCATMARK, b"\0" * 4))[0]


def take(sock, what):
    """A record with an urgent byte in it, as ftp's ABOR and telnet's Synch have it."""
    poll = select.poll()
    poll.register(sock, select.POLLPRI)
    poll.poll()
    urgent = sock.recv(1, socket.MSG_OOB)
    before = b""
    while not at_mark(sock):
        before += sock.recv(4096)
    after = b""
    while len(after) < 3:
        after += sock.recv(4096)
    end = time.monotonic() + 10
    while not signals and time.monotonic() < end:
        time.sleep(0.002)
    print(what, before, urgent, after, "SIGURG" if signals else "no signal", flush=True)
    del signals[:]


def give(sock, before, urgent, after):
    sock.sendall(before)
    sock.send(urgent, socket.MSG_OOB)
    sock.sendall(after)


role, *where = sys.argv[1:-1]
rounds = int(sys.argv[-1])
if role == "serve":
    listener = socket.create_server(("", int(where[0])))
    sock, _ = listener.accept()
else:
    end = time.monotonic() + 30
    while True:
        try:
            sock = socket.create_connection((where[0], int(where[1])), 10)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    sock.settimeout(None)
fcntl.fcntl(sock, fcntl.F_SETOWN, os.getpid())
# The server has named itself as the owner before the client begins.
if role == "serve":
    sock.sendall(b"220")
else:
    sock.recv(3, socket.MSG_WAITALL)
for n in range(rounds):
    if role == "call":
        give(sock, b"ABOR%d" % n, b"!", b"\r\n.")
        take(sock, "called")
    else:
        take(sock, "served")
        give(sock, b"226 %d" % n, b"?", b"\r\n:")
print(sock.recv(1) if role == "serve" else sock.close())
