"""Accepts one connection, writes more than anybody takes at once, and exits. With "child": starts one before, which
waits at the stack and says how that ends. With "much": writes until nobody takes any more. With "_exit" or the number of
a signal: ends by that."""

import os
import signal
import socket
import sys

listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
if "child" in sys.argv:
    if os.fork() == 0:
        own = socket.create_server(("127.0.0.1", 1))
        inner = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        inner.sendall(b"up")
        try:
            own.accept()
        except OSError as error:
            print("child:", error.strerror, flush=True)
        os._exit(0)
connection, _ = listener.accept()
connection.recv(10)
if "much" in sys.argv:
    connection.settimeout(1)
    try:
        while True:
            connection.send(b"x" * 20000)
    except TimeoutError:
        pass
elif "child" not in sys.argv:
    connection.sendall(b"x" * 3_000_000)
if "_exit" in sys.argv:
    os._exit(3)
if sys.argv[2:] and sys.argv[2].isdigit():
    signal.signal(int(sys.argv[2]), signal.SIG_DFL)
    assert signal.getsignal(int(sys.argv[2])) == signal.SIG_DFL
    os.kill(os.getpid(), int(sys.argv[2]))
sys.exit(3)
