"""Reading without taking, waiting for enough, and cutting off."""
import threading
from transcript import *

PEEK, ALL, DONTWAIT, TRUNC = socket.MSG_PEEK, socket.MSG_WAITALL, socket.MSG_DONTWAIT, socket.MSG_TRUNC
SOL = socket.SOL_SOCKET
a, b = pair()
a.send(b"0123456789")
settled(b, "IN")
print(b.recv(4, PEEK), b.recv(20, PEEK), b.recv(3), b.recv(20, PEEK))
buffer = bytearray(4)
show("PEEK|TRUNC", b.recv_into, buffer, 4, PEEK | TRUNC)
show("TRUNC", b.recv_into, buffer, 4, TRUNC)
print("left:", b.recv(20))
show("TRUNC of nothing", b.recv_into, buffer, 4, TRUNC | DONTWAIT)


def later(seconds, action, *args):
    timer = threading.Timer(seconds, action, args)
    timer.start()
    return timer


# WAITALL in every company.
a.send(b"abc")
timer = later(0.05, a.send, b"def")
print("WAITALL:", b.recv(6, ALL))
a.send(b"abc")
settled(b, "IN")
print("WAITALL|DONTWAIT:", b.recv(6, ALL | DONTWAIT))
a.send(b"ghi")
timer = later(0.05, a.send, b"jkl")
print("WAITALL|PEEK:", b.recv(6, ALL | PEEK), b.recv(10))
b.settimeout(None)
b.setsockopt(SOL, socket.SO_RCVTIMEO, struct.pack("ll", 0, 80000))
a.send(b"xyz")
settled(b, "IN")
print("WAITALL with a time limit:", b.recv(6, ALL))
show("nothing in time", b.recv, 6, ALL)
b.setsockopt(SOL, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))

# SO_RCVLOWAT: recv, poll and epoll.
b.setsockopt(SOL, socket.SO_RCVLOWAT, 5)
epoll = select.epoll()
epoll.register(b, select.EPOLLIN)
a.send(b"1234")
delivered()
print("below the mark:", events(mask_of(b)), epoll.poll(0) == [])
show("DONTWAIT takes what there is", b.recv, 10, DONTWAIT)
a.send(b"1234567")
print("above it:", settled(b, "IN"), epoll.poll(1) == [(b.fileno(), select.EPOLLIN)], b.recv(10))
a.send(b"end")
a.shutdown(socket.SHUT_WR)
print("the end counts:", settled(b, "RDHUP"), b.recv(10), b.recv(10))

# recvmmsg and sendmmsg on a stream; time limits of recvmmsg.
class iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char_p), ("len", ctypes.c_size_t)]


class msghdr(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.POINTER(iovec)), ("iovlen", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t), ("flags", ctypes.c_int)]


class mmsghdr(ctypes.Structure):
    _fields_ = [("hdr", msghdr), ("len", ctypes.c_uint)]


def messages(count, size):
    array = (mmsghdr * count)()
    for entry in array:
        entry.hdr.iov = ctypes.pointer(iovec(b"\0" * size, size))
        entry.hdr.iovlen = 1
    return array


first, second = datagrams()
for n in range(5):
    first.sendto(b"datagram %d" % n, second.getsockname())
settled(second, "IN")
delivered()
array = messages(10, 6)
show("recvmmsg", call, "recvmmsg", second.fileno(), array, 3, 0, None)
print([(entry.len, entry.hdr.flags == TRUNC) for entry in array[:3]])
show("recvmmsg DONTWAIT", call, "recvmmsg", second.fileno(), array, 10, DONTWAIT, None)
show("recvmmsg of nothing", call, "recvmmsg", second.fileno(), array, 10, DONTWAIT, None)
show("recvmmsg of 0", call, "recvmmsg", second.fileno(), array, 0, DONTWAIT, None)
first.sendto(b"one", second.getsockname())
show("WAITFORONE", call, "recvmmsg", second.fileno(), array, 10, 0x10000, None)
show("bad time", call, "recvmmsg", second.fileno(), array, 10, 0, struct.pack("ll", 0, 2_000_000_000))
show("negative time", call, "recvmmsg", second.fileno(), array, 10, 0, struct.pack("ll", -1, 0))
first.sendto(b"in time", second.getsockname())
timer = later(1.5, first.sendto, b"too late", second.getsockname())
begun = time.monotonic()
show("time limit, looked at after a datagram", call, "recvmmsg", second.fileno(), array, 10, 0, struct.pack("ll", 1, 0))
print(1 < (took := time.monotonic() - begun), in_time(took, 2.5))
timer.join()

# A datagram's parts (MSG_MORE), and empty ones.
first.connect(second.getsockname())
for part, flags in (b"one ", socket.MSG_MORE), (b"two ", socket.MSG_MORE), (b"three", 0):
    first.send(part, flags)
print(second.recv(100))
first.send(b"")
print("empty:", settled(second, "IN"), second.recv(100))
first.send(b"")
show("select sees an empty one", lambda: select.select([second], [], [], 1)[0] == [second])
show("FIONREAD of an empty one", lambda: (__import__("fcntl").ioctl(second, 0x541b, b"\0" * 4)))
show("read takes it", os.read, second.fileno(), 10)
show("write of nothing sends one", os.write, first.fileno(), b"")
print(events(mask_of(second)) if not eventually(lambda: mask_of(second) & POLL["IN"]) else "it came")
