"""Ways to be non-blocking, and what send and recv make of it."""
import fcntl
from transcript import *


def blocking(sock):
    return not fcntl.fcntl(sock, fcntl.F_GETFL) & os.O_NONBLOCK


print("by type:", blocking(socket.socket()), blocking(socket.socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK)))
print("close-on-exec by type:", fcntl.fcntl(call("socket", 2, 1 | socket.SOCK_CLOEXEC, 0), fcntl.F_GETFD),
      fcntl.fcntl(call("socket", 2, 1, 0), fcntl.F_GETFD))
client, server = pair()
os.set_blocking(client.fileno(), False)
print("F_SETFL:", blocking(client), blocking(server))
show("recv", client.recv, 1)
show("read", os.read, client.fileno(), 1)
total = 0
while isinstance(n := outcome(client.send, b"q" * 100_000), int):
    total += n
print("send takes what fits, megabytes of it, then:", n, total > 2_000_000)
print("full, not writable:", eventually(lambda: not mask_of(client) & POLL["OUT"]))
sent = total
while isinstance(n := outcome(client.send, b"q" * 100_000), int):
    sent += n
got = 0
while got < sent // 2:
    got += len(server.recv(65536))
print("writable again:", settled(client, "OUT"))
while got < sent:
    got += len(server.recv(65536))
show("nothing more", server.recv, 1, socket.MSG_DONTWAIT)
os.set_blocking(client.fileno(), True)
fill(client)
show("MSG_DONTWAIT", client.send, b"z" * (8 << 20), socket.MSG_DONTWAIT)

waiting = listener()
waiting.setblocking(False)
show("accept", waiting.accept)
c = socket.socket()
c.connect(waiting.getsockname())
print("listener:", settled(waiting, "IN"))
number = call("accept", waiting.fileno(), None, None)
print("accept does not inherit it:", blocking(number))
c2 = socket.socket()
c2.connect(waiting.getsockname())
settled(waiting, "IN")
number = call("accept4", waiting.fileno(), None, None, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
print("accept4:", blocking(number), fcntl.fcntl(number, fcntl.F_GETFD))
show("accept4 with wrong flags", call, "accept4", waiting.fileno(), None, None, 0x10)
number = call("dup", number)
print("dup drops close-on-exec:", fcntl.fcntl(number, fcntl.F_GETFD))

gone = listener()
nowhere = gone.getsockname()
gone.close()
refused = socket.socket()
refused.setblocking(False)
show("connect to nobody", refused.connect, nowhere)
print("refused:", settled(refused, "ERR"), refused.getsockname()[0])
show("connect tells", refused.connect, nowhere)
print("told:", refused.getsockname()[0])
