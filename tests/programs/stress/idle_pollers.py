"""Threads that each poll one idle socket sleep on while another connection of the process is busy.

Counted in wake-ups (voluntary context switches), not in time.
"""
import os
import select
import socket
import sys
import threading
import time

POLLERS, ROUNDS = 20, 2000
# A thread that each round wakes has 2000 or more. On a machine that has nothing else to do there are hardly any.
WAKE_UPS_MAX = 20 if "TOWPATH_JUDGE_TIME" in os.environ else ROUNDS // 4

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(64)


def pair():
    client = socket.create_connection(listener.getsockname())
    return client, listener.accept()[0]


def wake_ups(thread):
    with open(f"/proc/self/task/{thread.native_id}/status") as status:
        return int(next(line for line in status if line.startswith("voluntary")).split()[1])


def sleeps(thread):
    with open(f"/proc/self/task/{thread.native_id}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "S"


def wait_for(sock):
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    poll.poll()


idle = [pair() for _ in range(POLLERS)]
threads = [threading.Thread(target=wait_for, args=(client,)) for client, _ in idle]
for thread in threads:
    thread.start()
time.sleep(0.2)
while not all(map(sleeps, threads)):
    time.sleep(0.01)
before = [wake_ups(thread) for thread in threads]
client, server = pair()
for _ in range(ROUNDS):
    client.send(b"x")
    server.recv(1)
    server.send(b"y")
    client.recv(1)
woken = [wake_ups(thread) - was for thread, was in zip(threads, before)]
# An event of its own still wakes each.
for _, other in idle:
    other.send(b"z")
for thread in threads:
    thread.join(40)
stuck = sum(thread.is_alive() for thread in threads)
print(f"woken at most {max(woken)} times in {ROUNDS} rounds; {stuck} stuck", flush=True)
sys.exit(max(woken) > WAKE_UPS_MAX or stuck > 0)
