"""Peers that do not read fill all the buffers that they can get. Calls on O_NONBLOCK sockets do not
wait for memory, a new connection works at once, and in the end every byte arrives."""
import os
import resource
import select
import socket
import sys
import time

PEERS = 1000
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(PEERS)
ends = []
for _ in range(PEERS):
    one = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    ends += [one, other]
for end in ends:
    end.setblocking(False)
chunk = bytes(256 << 10)
sent, longest = [0] * len(ends), 0.0
for round in range(6):
    for at, end in enumerate(ends):
        try:
            while round % 3 == 2 or at % 2 == 0:
                start = time.monotonic()
                sent[at] += end.send(chunk)
                longest = max(longest, time.monotonic() - start)
        except BlockingIOError:
            longest = max(longest, time.monotonic() - start)
    time.sleep(0.1)
print(f"{sum(sent) >> 20} MiB queued, longest call {longest:.3f} s")

start = time.monotonic()
one = socket.create_connection(listener.getsockname(), timeout=40)
other, _ = listener.accept()
other.settimeout(40)
for _ in range(20):
    for a, b in ((one, other), (other, one)):
        a.sendall(bytes(5000))
        left = 5000
        while left:
            left -= len(b.recv(left))
echo = time.monotonic() - start
print(f"echo {echo:.3f} s")

got = [0] * len(ends)
epoll = select.epoll()
index = {end.fileno(): at for at, end in enumerate(ends)}
for end in ends:
    epoll.register(end, select.EPOLLIN | select.EPOLLET)
start = time.monotonic()
while sum(got) < sum(sent) and time.monotonic() - start < 50:
    for fd, _ in epoll.poll(1):
        at = index[fd]
        try:
            while True:
                got[at ^ 1] += len(ends[at].recv(1 << 20))
        except BlockingIOError:
            pass
print(f"drained in {time.monotonic() - start:.3f} s")
# Where times are judged: on a machine that has nothing else to do.
if got != sent or (echo > 3 and "TOWPATH_JUDGE_TIME" in os.environ):
    sys.exit(f"{sum(sent) - sum(got)} bytes are missing, or the echo took too long")
