"""sendfile, splice and file objects."""
import hashlib
import tempfile
import threading
from transcript import *

content = b"".join(struct.pack("I", i) for i in range(300_000))
file = tempfile.TemporaryFile()
file.write(content)
file.flush()


def collected(action):
    """What the peer of a connection receives from an action on it."""
    client, server = pair()
    got = []
    thread = threading.Thread(target=lambda: got.append(receive_all(server)))
    thread.start()
    result = outcome(action, client)
    client.close()
    thread.join()
    return result, got[0]


def send_whole_file(sock):
    sent = 0
    while n := os.sendfile(sock.fileno(), file.fileno(), sent, len(content) - sent):
        sent += n
    return sent


n, got = collected(send_whole_file)
print("sendfile:", n == len(content), got == content)
n, got = collected(lambda s: os.sendfile(s.fileno(), file.fileno(), 1000, 500))
print("part of it:", n, got == content[1000:1500])
file.seek(4000)
n, got = collected(lambda s: os.sendfile(s.fileno(), file.fileno(), None, 100))
print("from the file's own position:", n, got == content[4000:4100], file.tell())
n, got = collected(lambda s: os.sendfile(s.fileno(), file.fileno(), len(content), 100))
print("at its end:", n, got)
file.seek(0)
n, got = collected(lambda s: s.sendfile(file))
print("socket.sendfile:", n == len(content), got == content)
client, server = pair()
client.setblocking(False)
sent = 0
while isinstance(n := outcome(os.sendfile, client.fileno(), file.fileno(), 0, len(content)), int):
    sent += n
print("not blocking, until:", n, sent > 0)
show("sendfile of a closed number", os.sendfile, client.fileno(), 999, 0, 10)
show("sendfile to a pipe's end for reading", os.sendfile, os.pipe()[0], file.fileno(), 0, 10)
fresh = socket.socket()
show("sendfile unconnected", os.sendfile, fresh.fileno(), file.fileno(), 0, 10)

# splice: pipe to socket, socket to pipe.
read, write = os.pipe()
client, server = pair()
os.write(write, b"through the pipe")
show("splice to a socket", os.splice, read, client.fileno(), 100)
show("received", server.recv, 100)
server.sendall(b"and back")
settled(client, "IN")
show("splice from a socket", os.splice, client.fileno(), write, 100)
show("in the pipe", os.read, read, 100)
client.setblocking(False)
show("splice, nothing there", os.splice, client.fileno(), write, 100)
client.setblocking(True)
show("splice, no pipe", os.splice, client.fileno(), server.fileno(), 100)
server.shutdown(socket.SHUT_WR)
show("splice at the end", os.splice, client.fileno(), write, 100)


def spliced(sock):
    left = len(content)
    file.seek(0)
    while left:
        n = os.splice(file.fileno(), write, left)
        left -= n
        while n:
            n -= os.splice(read, sock.fileno(), n)
    return left


n, got = collected(spliced)
print("a file by splice:", n, hashlib.sha256(got).hexdigest() == hashlib.sha256(content).hexdigest())

# File objects.
client, server = pair()
stream = client.makefile("rwb")
stream.write(b"line one\nline two\nrest")
stream.flush()
reader = server.makefile("r", encoding="ascii")
print("lines:", repr(reader.readline()), repr(reader.readline()))
client.shutdown(socket.SHUT_WR)
print("rest:", repr(reader.read()))
server.close()
print("a file keeps it open:", events(mask_of(client)))
reader.close()
print("closed:", settled(client, "HUP"))
client, server = pair()
with os.fdopen(os.dup(client.fileno()), "r+b", buffering=0) as raw:
    raw.write(b"by fdopen")
    show("received", server.recv, 100)
    server.sendall(b"0123456789")
    settled(client, "IN")
    show("readinto", raw.read, 4)
show("the rest", client.recv, 100)
# stdio of the C library.
libc.fdopen.restype = ctypes.c_void_p
libc.fgets.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
libc.fgets.restype = ctypes.c_void_p
libc.fputs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
libc.fflush.argtypes = libc.fclose.argtypes = [ctypes.c_void_p]
out = libc.fdopen(os.dup(client.fileno()), b"w")
into = libc.fdopen(os.dup(server.fileno()), b"r")
libc.fputs(b"by stdio\nsecond\n", out)
show("fflush", libc.fflush, out)
line = ctypes.create_string_buffer(100)
libc.fgets(line, 100, into)
print("fgets:", line.value)
libc.fclose(out)
libc.fgets(line, 100, into)
print("fgets:", line.value)
libc.fclose(into)
libc.dprintf(client.fileno(), b"%s %d\n", b"dprintf", 42)
show("received", server.recv, 100)
