"""Workers send on one socket, each in a PID namespace of its own, and are stopped and killed at any
moment. What arrives is whole, and those who are left go on."""
import ctypes
import os
import random
import signal
import socket
import sys
import time

WORKERS, SECONDS, LONG, CLONE_NEWPID = 4, 5.0, 60000, 0x20000000
libc = ctypes.CDLL(None, use_errno=True)
own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
receiver, sender = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
receiver.bind(("127.0.0.1", 0))
receiver.settimeout(30)
sender.connect(receiver.getsockname())


def must(value):
    if value != 0:
        sys.exit(os.strerror(ctypes.get_errno()))


def work(letter):
    receiver.close()
    text = bytes([letter]) * LONG
    while True:
        sender.send(text)


def child(number):
    must(libc.unshare(CLONE_NEWPID))
    pid = os.fork()
    if pid == 0:
        work(ord("a") + number)
    must(libc.setns(own_namespace, CLONE_NEWPID))
    return pid


def receive():
    text = receiver.recv(LONG + 1)
    if len(text) != LONG or text != text[:1] * LONG:
        fail(f"{len(text)} bytes of {set(text)}")
    return text[:1]


def fail(why):
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    sys.exit(why)


random.seed(1)
workers = [child(n) for n in range(WORKERS)]
end = time.monotonic() + SECONDS
kills = received = 0
try:
    while time.monotonic() < end:
        at = random.randrange(WORKERS)
        if random.random() < 0.5:
            os.kill(workers[at], signal.SIGSTOP)
            time.sleep(0.02)
            os.kill(workers[at], signal.SIGCONT)
        else:
            os.kill(workers[at], signal.SIGKILL)
            os.waitpid(workers[at], 0)
            workers[at] = child(at)
            kills += 1
        for _ in range(5):
            received += bool(receive())
    # All of them are at it.
    heard, end = set(), time.monotonic() + 30
    while len(heard) < WORKERS and time.monotonic() < end:
        heard.add(receive())
except TimeoutError:
    fail(f"nothing comes any more after {kills} kills")
if len(heard) < WORKERS:
    fail(f"heard of {heard} only")
for worker in workers:
    os.kill(worker, signal.SIGKILL)
print(f"{kills} kills, {received} datagrams")
