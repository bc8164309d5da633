"""Urgent data: MSG_OOB, SO_OOBINLINE, sockatmark, SIGURG, and what waits for it."""
import fcntl
from transcript import *

SIOCATMARK, FIONREAD = 0x8905, 0x541b
OOB, PEEK, TRUNC, WAITALL, DONTWAIT = (
    socket.MSG_OOB, socket.MSG_PEEK, socket.MSG_TRUNC, socket.MSG_WAITALL, socket.MSG_DONTWAIT)
signals = []
signal.signal(signal.SIGURG, lambda *_: signals.append("URG"))


def number(sock, request):
    return outcome(lambda: struct.unpack("i", fcntl.ioctl(sock, request, b"\0" * 4))[0])


def at_mark(sock):
    return number(sock, SIOCATMARK)


def unread(sock, wanted):
    """FIONREAD, once it is so."""
    eventually(lambda: number(sock, FIONREAD) == wanted, 5.0)
    return number(sock, FIONREAD)


def arrived(sock, last):
    """Waits until all that was sent has come: what ends with `last`."""
    eventually(lambda: outcome(sock.recv, 4096, PEEK | DONTWAIT)[-len(last):] == last, 5.0)


def urgent_pair(family=socket.AF_INET):
    a, b = pair(family)
    fcntl.fcntl(b, fcntl.F_SETOWN, os.getpid())
    return a, b


for family in socket.AF_INET, socket.AF_INET6:
    a, b = urgent_pair(family)
    del signals[:]
    print("nothing:", outcome(b.recv, 1, OOB), at_mark(b), events(mask_of(b)))
    print("sent:", a.send(b"abc"), a.send(b"!", OOB), a.send(b"def"))
    print(settled(b, "IN|PRI"), eventually(lambda: signals == ["URG"]), at_mark(b), unread(b, 3))
    print("select:", [bool(found) for found in select.select([b], [], [b], 0)])
    print("stops:", b.recv(99), at_mark(b))
    print("peek:", b.recv(1, OOB | PEEK), b.recv(9, OOB | PEEK), settled(b, "IN|PRI"))
    print("taken:", b.recv(9, OOB), outcome(b.recv, 1, OOB), at_mark(b))
    print("passed:", settled(b, "IN"), number(b, FIONREAD), b.recv(99), at_mark(b), events(mask_of(b)))

print("-- not in line, and never read")
a.send(b"ab"), a.send(b"!", OOB), a.send(b"cd")
settled(b, "PRI")
print(b.recv(1), b.recv(9))
arrived(b, b"cd")
print(b.recv(9), outcome(b.recv, 1, OOB), at_mark(b))

print("-- the byte alone is passed by a read that finds nothing")
a.send(b"!", OOB)
print(settled(b, "PRI"), at_mark(b), outcome(b.recv, 9, DONTWAIT), at_mark(b), outcome(b.recv, 1, OOB))

print("-- several bytes: the last is urgent")
a.send(b"12345", OOB)
print(settled(b, "PRI"), unread(b, 4), b.recv(99), b.recv(1, OOB))
b.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
a.send(b"67", OOB), a.send(b"8")
unread(b, 4)
print(b.recv(99), b.recv(99), at_mark(b))

print("-- in line")
a, b = urgent_pair()
b.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
del signals[:]
a.send(b"abc"), a.send(b"!", OOB), a.send(b"def")
print(settled(b, "IN|PRI"), unread(b, 7), outcome(b.recv, 1, OOB), eventually(lambda: signals))
print(b.recv(99), at_mark(b), events(mask_of(b)), b.recv(2), at_mark(b), events(mask_of(b)), b.recv(9))

print("-- a second urgent byte before the first was read")
a, b = urgent_pair()
del signals[:]
a.send(b"ab"), a.send(b"1", OOB)
print(settled(b, "PRI"), eventually(lambda: len(signals) == 1))
a.send(b"cd"), a.send(b"2", OOB), a.send(b"ef")
print(unread(b, 5), eventually(lambda: len(signals) == 2), b.recv(99), b.recv(1, OOB), at_mark(b))
arrived(b, b"ef")
print(b.recv(99))

print("-- a second one, and the reader stands at the first")
a.send(b"1", OOB)
print(settled(b, "PRI"), at_mark(b))
a.send(b"2", OOB)
print(eventually(lambda: outcome(b.recv, 1, OOB | PEEK) == b"2"), at_mark(b), unread(b, 0), b.recv(1, OOB))
a.send(b"xy")
settled(b, "IN")
print(b.recv(9))
a.send(b"1", OOB)
settled(b, "PRI")
a.send(b"cd"), a.send(b"2", OOB), a.send(b"ef")
print(unread(b, 2), at_mark(b), b.recv(1), b.recv(9, PEEK), b.recv(9), at_mark(b), b.recv(1, OOB))
arrived(b, b"ef")
print(b.recv(9))

print("-- the first was read: it stays in the stream")
a.send(b"ab"), a.send(b"1", OOB)
print(settled(b, "PRI"), b.recv(1, OOB))
a.send(b"cd"), a.send(b"2", OOB)
print(settled(b, "PRI"), unread(b, 5), b.recv(99), b.recv(1, OOB), outcome(b.recv, 9, DONTWAIT))

print("-- calls that want more than there is up to the mark")
a.send(b"abc"), a.send(b"!", OOB), a.send(b"defg")
settled(b, "PRI")
print(b.recv(9, WAITALL), at_mark(b), b.recv(4, WAITALL))
a.send(b"abc"), a.send(b"!", OOB), a.send(b"defg")
settled(b, "PRI")
unread(b, 3)
print(b.recv(9, PEEK), b.recv(9, PEEK | WAITALL), b.recv(2), b.recv(1))
arrived(b, b"defg")
print(b.recv(9, PEEK), at_mark(b), b.recv(9), at_mark(b))
a.send(b"abc"), a.send(b"!", OOB), a.send(b"defg")
settled(b, "PRI")
unread(b, 3)
room = bytearray(9)
print(b.recv_into(room, 9, TRUNC), b.recv(1, OOB), b.recv_into(room, 2, TRUNC), b.recv(9))
b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 3)
a.send(b"!", OOB)
settled(b, "PRI")
a.send(b"xy")
unread(b, 0)
arrived(b, b"xy")
print("low water:", events(mask_of(b)), a.send(b"z"), settled(b, "IN"), b.recv(9))
b.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

print("-- messages")
a.sendmsg([b"a", b"b", b"!"], [], OOB)
settled(b, "PRI")
data, _, flags, _ = b.recvmsg(9, 0, OOB | PEEK)
print(data, flags & OOB != 0, flags & TRUNC != 0)
data, _, flags, _ = b.recvmsg(0, 0, OOB)
print(data, flags & OOB != 0, flags & TRUNC != 0, outcome(b.recv, 1, OOB))
data, _, flags, _ = b.recvmsg(9)
print(data, flags & OOB != 0)
a.send(b"x"), a.send(b"", OOB), a.send(b"y")
arrived(b, b"y")
print("no bytes, nothing urgent:", b.recv(9)[-2:], outcome(b.recv, 1, OOB))

print("-- epoll")
for mode in 0, select.EPOLLET:
    a, b = urgent_pair()
    with select.epoll() as poll:
        poll.register(b, select.EPOLLPRI | mode)
        a.send(b"ab")
        unread(b, 2)
        print("data:", poll.poll(0))
        a.send(b"!", OOB)
        print("urgent:", [events(mask) for _, mask in poll.poll(5)], len(poll.poll(0)))
        print("taken:", b.recv(1, OOB), poll.poll(0))
        a.send(b"?", OOB)
        print("again:", [events(mask) for _, mask in poll.poll(5)], b.recv(9), b.recv(1, OOB), poll.poll(0))

print("-- others with the same open file")
a, b = urgent_pair()
copy = b.dup()
a.send(b"ab"), a.send(b"!", OOB)
settled(b, "PRI")
print(copy.recv(9), at_mark(b), at_mark(copy), b.recv(1, OOB), outcome(copy.recv, 1, OOB))
back, done = os.pipe()
a.send(b"cd"), a.send(b"?", OOB)
settled(b, "PRI")
child = os.fork()
if child == 0:
    text = f"{b.recv(9)} {at_mark(b)} {b.recv(1, OOB)} {outcome(b.recv, 1, OOB)}"
    os.write(done, text.encode())
    os._exit(0)
os.waitpid(child, 0)
print("child:", os.read(back, 99).decode(), "parent:", at_mark(b), outcome(b.recv, 1, OOB))

print("-- SIGURG goes to the owner")
a, b = urgent_pair()
ready, say = os.pipe()
child = os.fork()
if child == 0:
    signal.signal(signal.SIGURG, lambda *_: os._exit(7))
    os.write(say, b"x")
    time.sleep(20)
    os._exit(1)
os.read(ready, 1)
fcntl.fcntl(b, fcntl.F_SETOWN, child)
del signals[:]
a.send(b"!", OOB)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), signals)
fcntl.fcntl(b, fcntl.F_SETOWN, 0)
a.send(b"!", OOB)
settled(b, "PRI")
delivered()
print("nobody:", signals)
fcntl.fcntl(b, fcntl.F_SETOWN, -os.getpgrp())
a.send(b"!", OOB)
print("group:", eventually(lambda: signals == ["URG"]))

print("-- the end")
a, b = urgent_pair()
a.send(b"ab"), a.send(b"!", OOB)
a.close()
print(settled(b, "PRI|RDHUP"), b.recv(9), b.recv(1, OOB), b.recv(9), outcome(b.recv, 1, OOB))
a, b = urgent_pair()
a.send(b"ab"), a.send(b"!", OOB)
a.close()
settled(b, "PRI|RDHUP")
print(b.recv(9), at_mark(b), b.recv(9), b.recv(9), outcome(b.recv, 1, OOB))
a, b = urgent_pair()
print(outcome(socket.socket().recv, 1, OOB), outcome(listener().recv, 1, OOB))
a.shutdown(socket.SHUT_WR)
print(outcome(a.send, b"!", OOB | socket.MSG_NOSIGNAL), outcome(a.recv, 1, OOB))

print("-- much, with marks in it")
a, b = urgent_pair()
if os.fork() == 0:
    for n in range(20):
        a.sendall(bytes([n]) * 100_000)
        a.send(b"!", OOB)
    os._exit(0)
a.close()
inside, total = 0, 0
b.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
while part := b.recv(65536):
    inside += part.count(b"!"[0])
    total += len(part)
print(total, inside)
