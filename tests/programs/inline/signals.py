"""Answers while handlers run that use sockets themselves, in the midst of calls that wait."""

import signal
import socket
import sys

inner = socket.create_server(("127.0.0.1", 9))
handled = 0


def arm():
    signal.setitimer(signal.ITIMER_REAL, 0.003)


def handler(number, frame):
    global handled
    handled += 1
    with socket.create_connection(("127.0.0.1", 9)) as one:
        other, _ = inner.accept()
        one.sendall(b"x")
        assert other.recv(1) == b"x"
        other.close()
    arm()


signal.signal(signal.SIGALRM, handler)
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("serving", flush=True)
arm()
connection, _ = listener.accept()
while data := connection.recv(100):
    connection.sendall(data)
signal.setitimer(signal.ITIMER_REAL, 0)
print("handled:", handled > 5)
