"""Accepts one connection, and is gone then: "child": a child lives on that has the socket, too; "program": it executes a
program in its place."""

import os
import socket
import sys
import time

listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
listener.accept()
if sys.argv[2] == "program":
    os.execv(sys.argv[3], sys.argv[3:])
if os.fork() == 0:
    try:
        listener.accept()
    except OSError as error:
        print("child:", error.strerror, flush=True)
    time.sleep(60)
    os._exit(0)
