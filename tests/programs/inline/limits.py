"""Lowers its limits of descriptors and says what it, a child and the programs that it starts are told of them: the path of
one without the library follows the port. With all descriptors but a few in use it serves; then it executes itself."""

import os
import resource
import socket
import subprocess
import sys

NOFILE = resource.RLIMIT_NOFILE
SAY = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE), flush=True)"
port, outsider = sys.argv[1:3]


def spawn(program, *args):
    pid = os.posix_spawn(program, [program, *args], os.environ)
    os.waitpid(pid, 0)


if sys.argv[3:] == ["again"]:
    print("executed:", resource.getrlimit(NOFILE))
    socket.socket().close()
    sys.exit(0)

resource.setrlimit(NOFILE, (64, 80))
print("own:", resource.getrlimit(NOFILE), flush=True)
if os.fork() == 0:
    lines = open("/proc/self/limits").read().splitlines()
    print("child:", [line.split()[3:5] for line in lines if "open files" in line], flush=True)
    os._exit(0)
os.wait()
subprocess.run([sys.executable, "-c", SAY], check=True)
spawn(sys.executable, "-c", SAY)
spawn(outsider)
listener = socket.create_server(("0.0.0.0", int(port)))
opened = []
try:
    while True:
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print("full:", error.strerror, flush=True)
os.close(opened.pop())
for _ in range(5):
    connection, _ = listener.accept()
    connection.sendall(connection.recv(100))
    # What is executed here resets what nobody has read.
    connection.recv(1)
    connection.close()
for fd in opened:
    os.close(fd)
os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
