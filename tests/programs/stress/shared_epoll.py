"""Eight threads sleep in one epoll set; eight datagrams arrive at once at one level-triggered socket.
Each thread takes one and is busy for long: the others must be woken for the rest."""
import select
import socket
import sys
import threading
import time

THREADS = 8
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("127.0.0.1", 0))
receiver.setblocking(False)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
epoll = select.epoll()
epoll.register(receiver, select.EPOLLIN)
taken = threading.Semaphore(0)


def serve():
    while True:
        if epoll.poll(maxevents=1):
            try:
                receiver.recv(10)
            except BlockingIOError:
                continue
            taken.release()
            time.sleep(1.5)


for _ in range(THREADS):
    threading.Thread(target=serve, daemon=True).start()
for _ in range(3):
    time.sleep(1.8)
    start = time.monotonic()
    for _ in range(THREADS):
        sender.sendto(b"x", receiver.getsockname())
    for n in range(THREADS):
        if not taken.acquire(timeout=1.2):
            sys.exit(f"{n} of {THREADS} threads woke")
    print(f"{time.monotonic() - start:.3f} s")
