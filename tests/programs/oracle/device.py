"""SO_BINDTODEVICE and SO_BINDTOIFINDEX: loopback by name and by number."""
from transcript import *

SOL, DEVICE, INDEX = socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 62


def device(sock):
    return outcome(sock.getsockopt, SOL, DEVICE, 16), outcome(sock.getsockopt, SOL, INDEX)


def make(kind, family=socket.AF_INET):
    return socket.socket(family, kind)


for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM:
    sock = make(kind)
    print("none:", device(sock))
    show("no such device", sock.setsockopt, SOL, DEVICE, b"no-such\0")
    show("no such number", sock.setsockopt, SOL, INDEX, 12345)
    show("negative number", sock.setsockopt, SOL, INDEX, -1)
    show("lo", sock.setsockopt, SOL, DEVICE, b"lo\0")
    print("then:", device(sock))
    show("room for 2", sock.getsockopt, SOL, DEVICE, 2)
    show("room for 3", sock.getsockopt, SOL, DEVICE, 3)
    show("room for 15", sock.getsockopt, SOL, DEVICE, 15)
    show("another", sock.setsockopt, SOL, DEVICE, b"no-such\0")
    print("still:", device(sock))
    show("no longer", sock.setsockopt, SOL, DEVICE, b"\0")
    print("then:", device(sock))
    show("without the zero", sock.setsockopt, SOL, DEVICE, b"lo")
    show("by number", sock.setsockopt, SOL, INDEX, 1)
    print("then:", device(sock))
    show("cleared by number", sock.setsockopt, SOL, INDEX, 0)
    show("of nothing", sock.setsockopt, SOL, DEVICE, b"")
    show("long name", sock.setsockopt, SOL, DEVICE, b"a-name-that-is-far-too-long\0")
    print("then:", device(sock))

# It works over loopback, both ways.
for family in socket.AF_INET, socket.AF_INET6:
    server = make(socket.SOCK_STREAM, family)
    server.setsockopt(SOL, DEVICE, b"lo\0")
    server.bind((loopback(family), 0))
    server.listen()
    client = make(socket.SOCK_STREAM, family)
    client.setsockopt(SOL, DEVICE, b"lo\0")
    show("connect", client.connect, server.getsockname())
    accepted, _ = server.accept()
    print("accepted is bound too:", device(accepted))
    client.send(b"over lo")
    print(accepted.recv(100))
    show("set while connected", client.setsockopt, SOL, DEVICE, b"lo\0")
    show("cleared while connected", client.setsockopt, SOL, DEVICE, b"\0")
    print("then:", device(client))
    client.send(b"still")
    print(accepted.recv(100))

    first, second = datagrams(family)
    first.setsockopt(SOL, DEVICE, b"lo\0")
    second.setsockopt(SOL, DEVICE, b"lo\0")
    show("sendto", first.sendto, b"datagram", second.getsockname())
    print(second.recv(100))

# A user without privileges may bind once, but not change it.
pid = os.fork()
if pid == 0:
    os.setgid(65534)
    os.setuid(65534)
    sock = make(socket.SOCK_DGRAM)
    show("user binds", sock.setsockopt, SOL, DEVICE, b"lo\0")
    show("user binds again", sock.setsockopt, SOL, DEVICE, b"lo\0")
    show("user clears", sock.setsockopt, SOL, DEVICE, b"\0")
    show("user names nothing", sock.setsockopt, SOL, DEVICE, b"no-such\0")
    show("user, by number", sock.setsockopt, SOL, INDEX, 1)
    print("user has:", device(sock))
    os._exit(0)
print("child:", os.waitpid(pid, 0)[1])

# Two sockets on one port.
one, two = make(socket.SOCK_DGRAM), make(socket.SOCK_DGRAM)
one.setsockopt(SOL, DEVICE, b"lo\0")
one.bind(("127.0.0.1", 0))
show("same port without the device", two.bind, one.getsockname())
two.setsockopt(SOL, DEVICE, b"lo\0")
show("same port with it", two.bind, one.getsockname())
