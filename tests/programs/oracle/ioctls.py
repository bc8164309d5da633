"""ioctl on sockets: queue lengths, marks, interfaces."""
import fcntl
from transcript import *

FIONREAD, SIOCOUTQ, SIOCOUTQNSD, SIOCATMARK, FIONBIO = 0x541b, 0x5411, 0x894b, 0x8905, 0x5421
SIOCGIFCONF, SIOCGIFFLAGS, SIOCGIFADDR, SIOCGIFNETMASK = 0x8912, 0x8913, 0x8915, 0x891b
SIOCGIFHWADDR, SIOCGIFINDEX, SIOCGIFNAME, SIOCGPGRP, SIOCSPGRP = 0x8927, 0x8933, 0x8910, 0x8904, 0x8902


def number(sock, request):
    return outcome(lambda: struct.unpack("i", fcntl.ioctl(sock, request, b"\0" * 4))[0])


a, b = pair()
udp, other = datagrams()
waiting = listener()
fresh = socket.socket()
for name, sock in ("TCP", a), ("UDP", udp), ("listener", waiting), ("fresh", fresh):
    for request in "FIONREAD", "SIOCOUTQ", "SIOCOUTQNSD", "SIOCATMARK", "SIOCGPGRP":
        print(name, request, number(sock, globals()[request]))
b.send(b"12345")
settled(a, "IN")
print("unread:", number(a, FIONREAD), a.recv(2), number(a, FIONREAD))
b.shutdown(socket.SHUT_WR)
settled(a, "RDHUP")
print("the end is no byte:", number(a, FIONREAD), a.recv(10), number(a, FIONREAD))
print("sent and taken:", eventually(lambda: number(b, SIOCOUTQ) == 0), number(b, SIOCOUTQNSD))
c, d = pair()
sent = fill(c)
print("queued, all counted:", eventually(lambda: number(c, SIOCOUTQ) + number(d, FIONREAD) == sent), number(c, SIOCOUTQNSD) > 0)
for payload in b"first", b"", b"the third":
    other.sendto(payload, udp.getsockname())
delivered()
for _ in range(4):
    print("next datagram:", number(udp, FIONREAD), outcome(udp.recv, 100, socket.MSG_DONTWAIT))
fcntl.ioctl(fresh, FIONBIO, struct.pack("i", 1))
print("FIONBIO:", bool(fcntl.fcntl(fresh, fcntl.F_GETFL) & os.O_NONBLOCK))
fcntl.ioctl(fresh, FIONBIO, struct.pack("i", 0))
fcntl.ioctl(fresh, SIOCSPGRP, struct.pack("i", os.getpid()))
print("owner:", number(fresh, SIOCGPGRP) == os.getpid() == fcntl.fcntl(fresh, fcntl.F_GETOWN))
print("FIONBIO:", bool(fcntl.fcntl(fresh, fcntl.F_GETFL) & os.O_NONBLOCK))


def interface(sock, request, name=b"lo", fill=b""):
    row = struct.pack("16s24s", name, fill)
    return outcome(lambda: fcntl.ioctl(sock, request, row)[16:])


for sock in fresh, udp:
    for name in b"lo", b"no-such", b"", b"lo:1":
        print(name)
        for request in "SIOCGIFADDR", "SIOCGIFNETMASK", "SIOCGIFHWADDR", "SIOCGIFINDEX":
            value = interface(sock, globals()[request], name)
            print("  ", request, value if isinstance(value, str) else value[:16])
    flags = interface(sock, SIOCGIFFLAGS)
    print("flags: up, loopback, running", [bool(struct.unpack("H", flags[:2])[0] & bit) for bit in (1, 8, 64)])
    print("name of 1:", fcntl.ioctl(sock, SIOCGIFNAME, struct.pack("16si20x", b"", 1))[:4])
    show("name of 99", fcntl.ioctl, sock, SIOCGIFNAME, struct.pack("16si20x", b"", 99))
    show("unknown", number, sock, 0x89ef)
    show("far away", number, sock, 0x5401)

room = ctypes.create_string_buffer(4096)
conf = struct.pack("iP", 4096, ctypes.addressof(room))
length, _ = struct.unpack("iP", fcntl.ioctl(udp, SIOCGIFCONF, conf))
rows = [room.raw[at:at + 40] for at in range(0, length, 40)]
print("SIOCGIFCONF has lo:", [(row[:3], socket.inet_ntoa(row[20:24])) for row in rows if row.startswith(b"lo\0")])
length, _ = struct.unpack("iP", fcntl.ioctl(udp, SIOCGIFCONF, struct.pack("iP", 39, ctypes.addressof(room))))
print("no room:", length)
length, _ = struct.unpack("iP", fcntl.ioctl(udp, SIOCGIFCONF, struct.pack("iP", 0, 0)))
print("asked for the length:", length >= 40)
libc = ctypes.CDLL(None, use_errno=True)
for offset in range(8):
    ctypes.memmove(ctypes.byref(room, 2048 + offset), struct.pack("iP", 0, 0), 16)
    at = ctypes.c_void_p(ctypes.addressof(room) + 2048 + offset)
    print("alignment", offset, libc.ioctl(udp.fileno(), ctypes.c_ulong(SIOCGIFCONF), at))
print("no structure:", libc.ioctl(udp.fileno(), ctypes.c_ulong(SIOCGIFCONF), None), errno.errorcode[ctypes.get_errno()])
print("if_nameindex has lo:", (1, "lo") in socket.if_nameindex(), socket.if_nametoindex("lo"), socket.if_indextoname(1))
show("no such name", socket.if_nametoindex, "no-such")
show("no such number", socket.if_indextoname, 99)
