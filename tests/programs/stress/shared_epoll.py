"""Eight threads sleep in one epoll set; eight datagrams arrive at once at one level-triggered socket.
Each thread takes one and is busy until all are taken: the others must be woken for the rest."""
import select
import socket
import sys
import threading
import time

THREADS, ROUNDS = 8, 3
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("127.0.0.1", 0))
receiver.setblocking(False)
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
epoll = select.epoll()
epoll.register(receiver, select.EPOLLIN)
taken = threading.Semaphore(0)
all_taken = [threading.Event() for _ in range(ROUNDS)]


def serve():
    while True:
        if epoll.poll(maxevents=1):
            try:
                number = receiver.recv(10)[0]
            except BlockingIOError:
                continue
            taken.release()
            all_taken[number].wait()


for _ in range(THREADS):
    threading.Thread(target=serve, daemon=True).start()
for number in range(ROUNDS):
    # As a rule all of them sleep by then.
    time.sleep(0.3)
    start = time.monotonic()
    for _ in range(THREADS):
        sender.sendto(bytes([number]), receiver.getsockname())
    for n in range(THREADS):
        if not taken.acquire(timeout=40):
            sys.exit(f"{n} of {THREADS} threads woke")
    all_taken[number].set()
    print(f"{time.monotonic() - start:.3f} s")
