"""Closes all that it can close, as a program does that becomes a daemon, and serves on. Its descriptors have the numbers
that they have beside an engine elsewhere."""

import os
import resource
import socket
import subprocess
import sys

first = os.open("/dev/null", os.O_RDONLY)
print("first:", first)
os.close(first)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
os.closerange(3, 1 << 20)
for number in range(3, hard):
    try:
        os.close(number)
        print("closed:", number)
    except OSError:
        pass
try:
    os.dup2(0, hard + 1)
    print("dup2 beyond the limit")
except OSError:
    pass
resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
print("listed:", sorted(int(n) for n in os.listdir("/proc/self/fd") if int(n) > 8))
print("limit:", resource.getrlimit(resource.RLIMIT_NOFILE) == (min(soft, 512), hard))
subprocess.run(["/bin/true"], check=True)
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
print("serving", flush=True)
for _ in range(20):
    connection, _ = listener.accept()
    connection.sendall(connection.recv(100))
    connection.close()
