"""epoll: what epoll_ctl refuses, descriptors that go away or are doubled, nested sets, select beyond 1024."""
import fcntl
import resource
from transcript import *

IN, OUT, ET, ONESHOT, RDHUP, EXCLUSIVE, WAKEUP = 1, 4, 1 << 31, 1 << 30, 0x2000, 1 << 28, 1 << 29
ADD, DEL, MOD = 1, 2, 3


def ctl(epoll, op, fd, events=0, data=0):
    event = struct.pack("=IQ", events, data)
    return outcome(call, "epoll_ctl", epoll if isinstance(epoll, int) else epoll.fileno(), op, fd, event)


def ready(epoll, timeout=0):
    return sorted(mask for _, mask in epoll.poll(timeout))


a, b = pair()
epoll = select.epoll()
fd = a.fileno()
print("MOD first:", ctl(epoll, MOD, fd, IN), "DEL first:", ctl(epoll, DEL, fd))
print("ADD:", ctl(epoll, ADD, fd, IN), "twice:", ctl(epoll, ADD, fd, IN))
print("unknown operation:", ctl(epoll, 9, fd, IN))
print("no descriptor:", ctl(epoll, ADD, 999, IN), ctl(epoll, DEL, 999), ctl(epoll, ADD, -1, IN))
print("itself:", ctl(epoll, ADD, epoll.fileno(), IN))
print("into a socket:", ctl(fd, ADD, b.fileno(), IN), "into nothing:", ctl(999, ADD, fd, IN))
with open("/etc/passwd") as file:
    print("a file:", ctl(epoll, ADD, file.fileno(), IN))
show("no event", call, "epoll_ctl", epoll.fileno(), ADD, b.fileno(), None)
print("DEL without event:", outcome(call, "epoll_ctl", epoll.fileno(), DEL, fd, None))
events_ = ctypes.create_string_buffer(120)
show("wait for 0", call, "epoll_wait", epoll.fileno(), events_, 0, 0)
show("wait for -1", call, "epoll_wait", epoll.fileno(), events_, -1, 0)
show("wait on a socket", call, "epoll_wait", fd, events_, 1, 0)
show("wait on nothing", call, "epoll_wait", 999, events_, 1, 0)
show("create of size 0", call, "epoll_create", 0)
show("create with wrong flags", call, "epoll_create1", 1)
flags = fcntl.fcntl(call("epoll_create1", os.O_CLOEXEC), fcntl.F_GETFD)
print("create with O_CLOEXEC:", flags)

print("EXCLUSIVE:", ctl(epoll, ADD, fd, IN | EXCLUSIVE), "changed:", ctl(epoll, MOD, fd, IN), ctl(epoll, MOD, fd, IN | EXCLUSIVE))
ctl(epoll, DEL, fd)
print("EXCLUSIVE with ONESHOT:", ctl(epoll, ADD, fd, IN | EXCLUSIVE | ONESHOT), "with RDHUP:", ctl(epoll, ADD, fd, IN | EXCLUSIVE | RDHUP))
print("changed to EXCLUSIVE:", ctl(epoll, ADD, fd, IN), ctl(epoll, MOD, fd, IN | EXCLUSIVE))
ctl(epoll, DEL, fd)
inner = select.epoll()
print("EXCLUSIVE of a set:", ctl(epoll, ADD, inner.fileno(), IN | EXCLUSIVE))

# Closed while in the set.
c, d = pair()
ctl(epoll, ADD, c.fileno(), IN | OUT)
print("in it:", ready(epoll))
number = c.fileno()
c.close()
print("closed:", ready(epoll), ctl(epoll, DEL, number), ctl(epoll, MOD, number, IN))
e, f = pair()
print("the number again:", e.fileno() == number, ready(epoll), ctl(epoll, ADD, e.fileno(), IN | OUT), ready(epoll))
twin = os.dup(e.fileno())
number = e.fileno()
e.close()
print("its duplicate keeps it:", ready(epoll), ctl(epoll, DEL, number), ctl(epoll, DEL, twin))
f.send(b"x")
delivered()
print("and goes on:", ready(epoll))
os.close(twin)
print("until it is closed:", ready(epoll))
twin = os.dup(a.fileno())
print("both numbers:", ctl(epoll, ADD, a.fileno(), OUT, 1), ctl(epoll, ADD, twin, OUT, 2), ready(epoll))
os.close(twin)
print("one closed, both there:", len(ready(epoll)))
ctl(epoll, DEL, a.fileno())

# Edge-triggered, with what is left unread; one-shot, armed again.
edge = select.epoll()
ctl(edge, ADD, a.fileno(), IN | ET)
b.send(b"123456")
print("edge:", ready(edge, 1), ready(edge), a.recv(2), ready(edge))
b.send(b"7")
print("more came:", ready(edge, 1), ready(edge), a.recv(100), ready(edge))
b.send(b"8")
ready(edge, 1)
print("armed again:", ctl(edge, MOD, a.fileno(), IN | ET), ready(edge), ready(edge))
print("one-shot:", ctl(edge, MOD, a.fileno(), IN | ONESHOT), ready(edge), ready(edge), ctl(edge, MOD, a.fileno(), IN | ONESHOT), ready(edge))
print("no events asked:", ctl(edge, MOD, a.fileno(), 0), ready(edge))
a.recv(10)
b.shutdown(socket.SHUT_WR)
settled(a, "RDHUP")
print("RDHUP asked:", ctl(edge, MOD, a.fileno(), RDHUP), ready(edge), "not asked:", ctl(edge, MOD, a.fileno(), OUT | ET), ready(edge))
a.shutdown(socket.SHUT_WR)
settled(a, "HUP")
print("HUP is always told:", ctl(edge, MOD, a.fileno(), 0), ready(edge))

# Nested.
x, y = pair()
outer, inner = select.epoll(), select.epoll()
ctl(inner, ADD, x.fileno(), IN)
print("nested:", ctl(outer, ADD, inner.fileno(), IN), ready(outer))
y.send(b"x")
print("ready:", ready(outer, 1), ready(outer), ready(inner), events(mask_of(inner)))
x.recv(1)
print("taken:", ready(outer), ready(inner), events(mask_of(inner)))
print("a circle:", ctl(inner, ADD, outer.fileno(), IN))

# poll and select.
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
poll = select.poll()
poll.register(x, 5)
z = socket.socket()
closed = z.fileno()
z.close()
poll.register(closed, 5)
print("poll of a closed one:", sorted(mask for _, mask in poll.poll(0)))


def raw_poll(*fds):
    array = bytearray(b"".join(struct.pack("ihh", fd, 5, 0) for fd in fds))
    buffer = (ctypes.c_char * len(array)).from_buffer(array)
    count = outcome(call, "poll", buffer, len(fds), 0)
    return count, [struct.unpack_from("ihh", array, at)[2] for at in range(0, len(array), 8)]


print("negative ones:", raw_poll(-1, x.fileno(), -5, closed))
show("select of a closed one", select.select, [closed], [], [], 0)
if hard >= 1400:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1400, hard))
    high = os.dup2(x.fileno(), 1300)
    sets = [ctypes.create_string_buffer(176) for _ in range(2)]
    sets[1][1300 // 8] = bytes([1 << 1300 % 8])
    show("select beyond 1024", call, "select", 1301, sets[0], sets[1], None, struct.pack("ll", 0, 0))
    print(sets[1][1300 // 8][0] == 1 << 1300 % 8)
