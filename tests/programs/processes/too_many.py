"""Forks until no process can be made any more: what the calls say, and that everything goes on."""
import ctypes
import errno
import os
import signal
import socket
import sys

signal.alarm(60)
libc = ctypes.CDLL(None, use_errno=True)
libc.popen.restype = ctypes.c_void_p
children = []


def talks():
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            accepted, _ = server.accept()
            accepted.send(b"x")
            accepted.close()
            return client.recv(1) == b"x"


def refusal(make):
    for _ in range(200):
        try:
            pid = make()
        except OSError as error:
            return errno.errorcode[error.errno]
        children.append(pid)
    return "none"


def fork():
    pid = os.fork()
    if pid == 0:
        signal.pause()
    return pid


def popen():
    stream = libc.popen(b"sleep 50", b"r")
    if not stream:
        raise OSError(ctypes.get_errno(), "popen")
    sys.exit("a process more")


print("fork:", refusal(fork))
print("posix_spawn:", refusal(lambda: os.posix_spawn("/bin/sleep", ["sleep", "50"], {})))
print("popen:", refusal(popen), flush=True)
# Who becomes another program is no process more.
os.kill(children[0], signal.SIGKILL)
os.waitpid(children.pop(0), 0)
code = "import socket; socket.create_server(('127.0.0.1', 0)); print('exec: as ever')"
pid = os.fork()
if pid == 0:
    os.execv(sys.executable, [sys.executable, "-c", code])
os.waitpid(pid, 0)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
again = os.fork()
if again == 0:
    os._exit(0 if talks() else 1)
print("afterwards:", "as ever" if os.waitpid(again, 0)[1] == 0 and talks() else "broken")
