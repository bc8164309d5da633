"""RLIMIT_NOFILE is reached: EMFILE, and what is open keeps working."""
import resource
from transcript import *

client, server = pair()
waiting = listener()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))
opened = []
while isinstance(sock := outcome(socket.socket), socket.socket):
    opened.append(sock)
    if len(opened) > 1000:
        break
print("socket:", sock, 40 < len(opened) <= 64)
show("another", socket.socket)
show("dup", os.dup, client.fileno())
show("open", os.open, "/dev/null", os.O_RDONLY)
client.sendall(b"still")
show("what is open works", server.recv, 10)
print("poll:", settled(client, "OUT"))
last = opened.pop()
show("connect needs none", last.connect, waiting.getsockname())
show("accept needs one", waiting.accept)
opened.pop().close()
accepted = outcome(waiting.accept)
print("accept after a close:", isinstance(accepted, tuple))
last.sendall(b"accepted")
show("received", accepted[0].recv, 10)
show("full again", socket.socket)
show("epoll", call, "epoll_create1", 0)
show("fork works", lambda: os.waitpid(pid, 0)[1] if (pid := os.fork()) else os._exit(0))
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
opened += [socket.socket() for _ in range(100)]
print("a higher limit, more sockets:", len(opened) > 100)
for sock in opened:
    sock.close()
client.sendall(b"at the end")
show("still", server.recv, 10)

# RLIMIT_AS: the library's memory does not count, here, in children, and in programs executed.
import mmap
import subprocess

GIB = 1 << 30


def fits(size):
    try:
        mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE).close()
    except (OSError, MemoryError):
        return False
    return True


resource.setrlimit(resource.RLIMIT_AS, (2 * GIB, 2 * GIB))
print("address space:", resource.getrlimit(resource.RLIMIT_AS) == (2 * GIB, 2 * GIB), fits(GIB), fits(3 * GIB))
sys.stdout.flush()
if os.fork() == 0:
    print("child:", resource.getrlimit(resource.RLIMIT_AS) == (2 * GIB, 2 * GIB), fits(GIB), fits(3 * GIB))
    sys.stdout.flush()
    os.execvp("sh", ["sh", "-c", "ulimit -v; sh -c 'ulimit -v'"])
os.wait()
print("spawned:", subprocess.run(["sh", "-c", "ulimit -v"], capture_output=True).stdout)
sys.stdout.flush()
os.execvp("sh", ["sh", "-c", "echo executed; ulimit -v"])
