"""TTL and hop limits: what can be set, what reads back, what goes out, apart for each family; 0 and -1."""
from transcript import *

IP, V6 = socket.IPPROTO_IP, socket.IPPROTO_IPV6
VALUES = (5, -1, 7, 0, -2, 256, 255, 1, b"\0", b"\x03")
LIMITS = ((IP, socket.IP_TTL), (IP, socket.IP_MULTICAST_TTL), (V6, socket.IPV6_UNICAST_HOPS), (V6, socket.IPV6_MULTICAST_HOPS))
GROUP = "239.1.2.3"


def udp(family):
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return sock


def receiver(family):
    """A socket that tells how far what it received could have gone."""
    sock = udp(family)
    sock.setsockopt(IP, 12, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(V6, socket.IPV6_RECVHOPLIMIT, 1)
    sock.bind(("", 0))
    return sock


def limits(sock):
    """Of each datagram that came."""
    delivered()
    result = []
    while mask_of(sock) & POLL["IN"]:
        data, control, _, _ = sock.recvmsg(100, 100)
        result += [(data, struct.unpack("i", value)[0]) for _, _, value in control]
    return result


# What is set and what is read.
for family in socket.AF_INET, socket.AF_INET6:
    for kind in socket.SOCK_DGRAM, socket.SOCK_STREAM:
        for option in LIMITS:
            if option[0] == V6 and family == socket.AF_INET:
                continue
            sock = socket.socket(family, kind)
            print(family.name, kind.name, option, "is", outcome(sock.getsockopt, *option))
            for value in VALUES:
                print("  ", value, outcome(sock.setsockopt, *option, value), outcome(sock.getsockopt, *option))
sock = socket.socket(socket.AF_INET6)
for value in (-1, 1, 0x2b, 255, 0):
    show(f"class of TCP {value}", sock.setsockopt, V6, socket.IPV6_TCLASS, value)
    show("as read", sock.getsockopt, V6, socket.IPV6_TCLASS)

# To one host, each family by its own option, then by the message.
server = receiver(socket.AF_INET6)
port = server.getsockname()[1]
client = udp(socket.AF_INET6)
MAPPED, SIX = ("::ffff:127.0.0.1", port), ("::1", port)


def both(what):
    print(what, outcome(client.sendto, b"to IPv4", MAPPED), outcome(client.sendto, b"to IPv6", SIX), limits(server))


both("unset:")
client.setsockopt(IP, socket.IP_TTL, 7)
both("IP_TTL 7:")
client.setsockopt(V6, socket.IPV6_UNICAST_HOPS, 0)
both("IPV6_UNICAST_HOPS 0:")
client.setsockopt(IP, socket.IP_TTL, -1)
both("IP_TTL -1:")
client.setsockopt(V6, socket.IPV6_UNICAST_HOPS, -1)
both("IPV6_UNICAST_HOPS -1:")
client.setsockopt(V6, socket.IPV6_UNICAST_HOPS, 9)
for value in 0, -1, 3, 255:
    show(f"message {value}", client.sendmsg, [b"x"], [(V6, socket.IPV6_HOPLIMIT, struct.pack("i", value))], 0, SIX)
    print(limits(server))
client.connect(SIX)
client.setsockopt(V6, socket.IPV6_UNICAST_HOPS, 0)
client.send(b"connected")
print(limits(server))

# A connection with the limit 0 works on the host.
server = listener(socket.AF_INET6)
client = socket.socket(socket.AF_INET6)
client.setsockopt(V6, socket.IPV6_UNICAST_HOPS, 0)
show("TCP connects", client.connect, server.getsockname())
accepted, _ = server.accept()
client.send(b"far enough")
print(receive_exactly(accepted, 10), client.getsockopt(V6, socket.IPV6_UNICAST_HOPS))

# To groups, over loopback.
member = receiver(socket.AF_INET)
member.setsockopt(IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP) + socket.inet_aton("127.0.0.1"))
sender = udp(socket.AF_INET)
sender.setsockopt(IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
there = (GROUP, member.getsockname()[1])
for value in None, 0, 5, -1, 1:
    if value is not None:
        sender.setsockopt(IP, socket.IP_MULTICAST_TTL, value)
    sender.sendto(b"multicast", there)
    print("IP_MULTICAST_TTL", value, limits(member))
for value in 0, -1, 3:
    show(f"message {value}", sender.sendmsg, [b"x"], [(IP, socket.IP_TTL, struct.pack("i", value))], 0, there)
    print(limits(member))
