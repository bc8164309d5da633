"""Has a child with a connection to PEER:8111, of which nobody reads, and which it still writes to. Then it accepts one
connection itself, writes until nobody takes any more, says how much that was, and exits."""

import os
import socket
import sys

peer = sys.argv[1]
listener = socket.create_server(("0.0.0.0", 8110))
ready, tell = os.pipe()


def fill(connection):
    sent = 0
    connection.settimeout(1)
    try:
        while True:
            sent += connection.send(b"x" * 20000)
    except TimeoutError:
        connection.settimeout(None)
        return sent


if os.fork() == 0:
    own = socket.create_connection((peer, 8111))
    fill(own)
    os.write(tell, b"x")
    try:
        own.sendall(b"x" * 10_000_000)
    except OSError as error:
        print("child:", error.strerror, flush=True)
    os._exit(0)
os.read(ready, 1)
connection, _ = listener.accept()
connection.recv(10)
print("parent:", fill(connection), flush=True)
sys.exit(3)
