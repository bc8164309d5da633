"""What recvmsg says beside the bytes of a datagram, and what sendmsg takes beside them."""
from transcript import *

SOL, IP, V6 = socket.SOL_SOCKET, socket.IPPROTO_IP, socket.IPPROTO_IPV6
NAMES = {(IP, 8): "IP_PKTINFO", (IP, 2): "IP_TTL", (IP, 1): "IP_TOS", (SOL, 29): "TIMESTAMP", (SOL, 35): "TIMESTAMPNS",
         (V6, 50): "IPV6_PKTINFO", (V6, 52): "IPV6_HOPLIMIT", (V6, 67): "IPV6_TCLASS", (IP, 20): "IP_ORIGDSTADDR",
         (SOL, 40): "RXQ_OVFL"}


def told(ancillary):
    for level, kind, value in ancillary:
        name = NAMES.get((level, kind), (level, kind))
        if len(value) < {"TIMESTAMP": 16, "TIMESTAMPNS": 16, "IP_PKTINFO": 12, "IPV6_PKTINFO": 20}.get(name, 0):
            value = f"cut to {len(value)}"
        elif "TIMESTAMP" in name:
            seconds, rest = struct.unpack("qq", value)
            value = abs(seconds - time.time()) < 100 and 0 <= rest < 10 ** (9 if name == "TIMESTAMPNS" else 6)
        elif name == "IP_PKTINFO":
            index, spec, destination = struct.unpack("i4s4s", value)
            value = (index, socket.inet_ntoa(spec), socket.inet_ntoa(destination))
        elif name == "IPV6_PKTINFO":
            value = (socket.inet_ntop(socket.AF_INET6, value[:16]), struct.unpack("i", value[16:])[0])
        elif len(value) == 4:
            value = struct.unpack("i", value)[0]
        print("  ", name, value)


def receive(sock, what, room=512, flags=0):
    data, ancillary, flags, _ = sock.recvmsg(100, room, flags)
    print(what, data, "CTRUNC" if flags & socket.MSG_CTRUNC else "")
    told(ancillary)


def more(sock):
    """Whether there is another datagram."""
    delivered()
    return mask_of(sock) & POLL["IN"]


def receiver(family, host, *options):
    sock = socket.socket(family, socket.SOCK_DGRAM)
    for level, name in options:
        sock.setsockopt(level, name, 1)
    sock.bind((host, 0))
    return sock, sock.getsockname()[1]


V4_ALL = ((IP, 8), (IP, 12), (IP, 13), (SOL, 35))
server, port = receiver(socket.AF_INET, "0.0.0.0", *V4_ALL)
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.sendto(b"plain", ("127.0.0.1", port))
receive(server, "all of IPv4:")
client.setsockopt(IP, socket.IP_TTL, 9)
client.setsockopt(IP, socket.IP_TOS, 0xb8)
client.sendto(b"marked", ("127.9.9.9", port))
receive(server, "peeked:", flags=socket.MSG_PEEK)
for room in 0, 15, 16, 20, 24, 27, 28, 32, 64, 72, 80, 100:
    client.sendto(b"room", ("127.0.0.1", port))
    receive(server, f"room for {room}:", room)
receive(server, "left:", 512, socket.MSG_DONTWAIT) if more(server) else print("nothing left")
server.setsockopt(SOL, 29, 1)
print("one timestamp replaces the other:", server.getsockopt(SOL, 29), server.getsockopt(SOL, 35))
client.sendto(b"us", ("127.0.0.1", port))
receive(server, "microseconds:")
server.setsockopt(SOL, 35, 1)
print("and back:", server.getsockopt(SOL, 29), server.getsockopt(SOL, 35))
server.setsockopt(SOL, 35, 0)
print("off:", server.getsockopt(SOL, 29), server.getsockopt(SOL, 35))
for option in V4_ALL:
    server.setsockopt(*option, 0)
client.sendto(b"none", ("127.0.0.1", port))
receive(server, "all off:")

# A message's own.
server, port = receiver(socket.AF_INET, "0.0.0.0", (IP, 8), (IP, 12), (IP, 13))
here = ("127.0.0.1", port)


def send(name, *control):
    show(name, client.sendmsg, [name.encode()], control, 0, here)


def info(index=0, source="0.0.0.0"):
    return IP, 8, struct.pack("i4s4s", index, socket.inet_aton(source), b"\0" * 4)


send("ttl", (IP, socket.IP_TTL, struct.pack("i", 3)))
send("tos", (IP, socket.IP_TOS, struct.pack("i", 0x20)))
send("tos byte", (IP, socket.IP_TOS, b"\x28"))
send("source", info(0, "127.3.3.3"))
send("lo", info(1))
send("all", info(1, "127.4.4.4"), (IP, socket.IP_TTL, struct.pack("i", 200)), (IP, socket.IP_TOS, b"\x04"))
send("ttl 0", (IP, socket.IP_TTL, struct.pack("i", 0)))
send("ttl 256", (IP, socket.IP_TTL, struct.pack("i", 256)))
send("ttl -1", (IP, socket.IP_TTL, struct.pack("i", -1)))
send("ttl short", (IP, socket.IP_TTL, b"\1"))
send("tos 256", (IP, socket.IP_TOS, struct.pack("i", 256)))
send("unknown", (IP, 99, b"\1\2\3\4"))
send("other level", (99, 1, b"\1\2\3\4"))
send("tcp level", (socket.IPPROTO_TCP, 1, b"\1\2\3\4"))
send("rights", (SOL, socket.SCM_RIGHTS, struct.pack("i", 0)))
# Newer kernels say ENETUNREACH, older ones EINVAL.
print("foreign source is refused:", outcome(client.sendmsg, [b"x"], [info(0, "192.0.2.1")], 0, here) in ("ENETUNREACH", "EINVAL"))
send("no such device", info(99))
send("pktinfo short", (IP, 8, b"\0" * 8))
send("v6 message", (V6, socket.IPV6_HOPLIMIT, struct.pack("i", 3)))
while more(server):
    receive(server, "got")

V6_ALL = ((V6, socket.IPV6_RECVPKTINFO), (V6, socket.IPV6_RECVHOPLIMIT), (V6, socket.IPV6_RECVTCLASS), (SOL, 29))
server, port = receiver(socket.AF_INET6, "::", *V6_ALL)
client = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
client.setsockopt(V6, socket.IPV6_UNICAST_HOPS, 11)
client.setsockopt(V6, socket.IPV6_TCLASS, 0x48)
client.sendto(b"v6", ("::1", port))
receive(server, "all of IPv6:")
here = ("::1", port)
send("hops", (V6, socket.IPV6_HOPLIMIT, struct.pack("i", 3)))
send("class", (V6, socket.IPV6_TCLASS, struct.pack("i", 0x10)))
send("hops -1", (V6, socket.IPV6_HOPLIMIT, struct.pack("i", -1)))
send("hops 256", (V6, socket.IPV6_HOPLIMIT, struct.pack("i", 256)))
send("class 256", (V6, socket.IPV6_TCLASS, struct.pack("i", 256)))
send("from ::1", (V6, socket.IPV6_PKTINFO, socket.inet_pton(socket.AF_INET6, "::1") + struct.pack("i", 1)))
send("foreign source", (V6, socket.IPV6_PKTINFO, socket.inet_pton(socket.AF_INET6, "2001:db8::1") + struct.pack("i", 0)))
send("no such device", (V6, socket.IPV6_PKTINFO, bytes(16) + struct.pack("i", 99)))
send("short", (V6, socket.IPV6_PKTINFO, b"\0" * 8))
send("unknown", (V6, 99, b"\1\2\3\4"))
while more(server):
    receive(server, "got")
old = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
old.setsockopt(IP, socket.IP_TTL, 12)
old.setsockopt(IP, socket.IP_TOS, 0x68)
old.sendto(b"v4", ("127.0.0.1", port))
receive(server, "IPv4 on an IPv6 socket:")

# TCP says no more than the times of its bytes.
left, right = pair()
for option in (IP, 8), (IP, 12), (SOL, 35):
    show("TCP takes the option", right.setsockopt, *option, 1)
left.send(b"stream")
settled(right, "IN")
data, ancillary, flags, sender = right.recvmsg(10, 100)
print("TCP:", data, flags, sender, [entry[:2] for entry in ancillary if entry[0] != SOL])
show("sendmsg with a message", left.sendmsg, [b"x"], [(IP, socket.IP_TTL, struct.pack("i", 3))])
show("sendmsg with an unknown message", left.sendmsg, [b"x"], [(SOL, 99, struct.pack("i", 3))])
show("sendmsg with rights", left.sendmsg, [b"x"], [(SOL, socket.SCM_RIGHTS, struct.pack("i", 0))])
