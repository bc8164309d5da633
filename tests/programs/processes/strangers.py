"""A static program, which the preload library does not reach, keeps none of the connections open that
it was not given. Argument: a static program that sleeps."""
import os
import select
import signal
import socket
import sys
import time

SLEEPER = sys.argv[1]
signal.alarm(60)


def pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


def ends_within(client, seconds):
    return bool(select.select([client], [], [], seconds)[0]) and client.recv(1) == b""


def fork_and_exec():
    pid = os.fork()
    if pid == 0:
        os.execv(SLEEPER, [SLEEPER])
    return pid


def spawn():
    return os.posix_spawn(SLEEPER, [SLEEPER], os.environ)


def check(start, seconds):
    client, server = pair()
    pid = start()
    server.close()
    ended = ends_within(client, seconds)
    running = os.waitpid(pid, os.WNOHANG) == (0, 0)
    # The parent's other connections do not suffer.
    client, server = pair()
    client.send(b"alive")
    alive = server.recv(10) == b"alive"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    print(f"{start.__name__}: ended {ended}, running {running}, others {alive}")


check(fork_and_exec, 3)
check(spawn, 10)

# Nor what the parent opens once it runs, however many sockets that has opened before.
for opened in [socket.socket() for _ in range(200)]:
    opened.close()
pid = spawn()
client, server = pair()
server.close()
print(f"later: ended {ends_within(client, 2)}")
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)

# What it was given on purpose it holds, as on Linux, until it ends.
client, server = pair()
server.set_inheritable(True)
pid = spawn()
server.close()
held = not ends_within(client, 7)
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
print(f"given: held {held}, then ended {ends_within(client, 5)}")
