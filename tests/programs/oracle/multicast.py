"""Multicast over loopback: memberships, who hears what, and what is refused."""
from transcript import *

SOL, IP, V6 = socket.SOL_SOCKET, socket.IPPROTO_IP, socket.IPPROTO_IPV6
GROUP, OTHER, GROUP6 = "239.1.2.3", "239.1.2.4", "ff01::1:2"


def mreq(group, interface="127.0.0.1"):
    return socket.inet_aton(group) + socket.inet_aton(interface)


def mreqn(group, interface="0.0.0.0", index=1):
    return mreq(group, interface) + struct.pack("i", index)


def mreq6(group, index=1):
    return socket.inet_pton(socket.AF_INET6, group) + struct.pack("i", index)


def udp(family=socket.AF_INET):
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setsockopt(SOL, socket.SO_REUSEADDR, 1)
    return sock


def heard(sock):
    """Everything that came."""
    delivered()
    result = []
    while mask_of(sock) & POLL["IN"]:
        result.append(sock.recv(100))
    return result


# Who hears a group.
member = udp()
member.bind(("", 0))
port = member.getsockname()[1]
show("join", member.setsockopt, IP, socket.IP_ADD_MEMBERSHIP, mreq(GROUP))
show("join again", member.setsockopt, IP, socket.IP_ADD_MEMBERSHIP, mreq(GROUP))
show("join by number", member.setsockopt, IP, socket.IP_ADD_MEMBERSHIP, mreqn(GROUP))
bystander, outsider, bound = udp(), udp(), udp()
bystander.bind(("", port))
outsider.bind(("", port))
outsider.setsockopt(IP, 49, 0)
bound.bind((GROUP, port))
unicast = udp()
unicast.bind(("127.0.0.1", port))
sender = udp()
show("multicast interface", sender.setsockopt, IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
show("as read", sender.getsockopt, IP, socket.IP_MULTICAST_IF, 4)
show("default as read", member.getsockopt, IP, socket.IP_MULTICAST_IF, 4)
show("send", sender.sendto, b"to all", (GROUP, port))
print("member", heard(member), "bystander", heard(bystander), "IP_MULTICAST_ALL off", heard(outsider),
      "bound to it", heard(bound), "unicast", heard(unicast))
show("send elsewhere", sender.sendto, b"other group", (OTHER, port))
print("member", heard(member), "bystander", heard(bystander), "bound", heard(bound))
sender.setsockopt(IP, socket.IP_MULTICAST_LOOP, 0)
sender.sendto(b"not looped", (GROUP, port))
print("without loop:", heard(member))
sender.setsockopt(IP, socket.IP_MULTICAST_LOOP, 1)
sender.setsockopt(IP, socket.IP_MULTICAST_TTL, 0)
sender.sendto(b"ttl 0", (GROUP, port))
print("ttl 0:", heard(member))
sender.setsockopt(IP, socket.IP_MULTICAST_TTL, 1)
show("connect", sender.connect, (GROUP, port))
print("from:", sender.getsockname()[0])
sender.send(b"connected")
print("connected:", heard(member))
show("leave", member.setsockopt, IP, socket.IP_DROP_MEMBERSHIP, mreq(GROUP))
show("leave again", member.setsockopt, IP, socket.IP_DROP_MEMBERSHIP, mreq(GROUP))
sender.send(b"left")
print("after leaving:", heard(member), heard(outsider))

# Where it came to.
member.setsockopt(IP, socket.IP_ADD_MEMBERSHIP, mreqn(GROUP))
member.setsockopt(IP, 8, 1)
member.setsockopt(IP, 12, 1)
sender.send(b"where")
data, ancillary, _, source = member.recvmsg(100, 200)
print(data, source[0])
for level, kind, value in ancillary:
    print("  ", kind, (struct.unpack("i", value[:4])[0], socket.inet_ntoa(value[4:8]), socket.inet_ntoa(value[8:])) if kind == 8
          else struct.unpack("i", value)[0])

# Refusals.
tcp = socket.socket()
for name, sock in ("UDP", udp()), ("TCP", tcp):
    show(f"{name} joins a unicast address", sock.setsockopt, IP, socket.IP_ADD_MEMBERSHIP, mreq("10.1.2.3"))
    show(f"{name} joins a group", sock.setsockopt, IP, socket.IP_ADD_MEMBERSHIP, mreq(GROUP))
    show(f"{name} leaves it", sock.setsockopt, IP, socket.IP_DROP_MEMBERSHIP, mreq(GROUP))
    show(f"{name} joins on no interface", sock.setsockopt, IP, socket.IP_ADD_MEMBERSHIP, mreq(GROUP, "192.0.2.77"))
    show(f"{name} joins on no number", sock.setsockopt, IP, socket.IP_ADD_MEMBERSHIP, mreqn(GROUP, index=99))
    show(f"{name} short", sock.setsockopt, IP, socket.IP_ADD_MEMBERSHIP, b"\xef\1\2\3")
    show(f"{name} is no interface", sock.setsockopt, IP, socket.IP_MULTICAST_IF, socket.inet_aton("192.0.2.77"))
    show(f"{name} takes an interface", sock.setsockopt, IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
    show(f"{name} sets the TTL", sock.setsockopt, IP, socket.IP_MULTICAST_TTL, 5)
    show(f"{name} reads the TTL", sock.getsockopt, IP, socket.IP_MULTICAST_TTL)
    show(f"{name} sets the loop", sock.setsockopt, IP, socket.IP_MULTICAST_LOOP, 0)
    show(f"{name} reads the loop", sock.getsockopt, IP, socket.IP_MULTICAST_LOOP)
    show(f"{name} loop 2", sock.setsockopt, IP, socket.IP_MULTICAST_LOOP, 2)
    show(f"{name} TTL -1", sock.setsockopt, IP, socket.IP_MULTICAST_TTL, -1)
    show(f"{name} reads the TTL", sock.getsockopt, IP, socket.IP_MULTICAST_TTL)
    show(f"{name} MULTICAST_ALL 2", sock.setsockopt, IP, 49, 2)
    show(f"{name} reads a membership", sock.getsockopt, IP, socket.IP_ADD_MEMBERSHIP)
show("TCP connects to a group", tcp.connect, (GROUP, 9))

# From one source only.
member = udp()
member.bind(("", 0))
there = (GROUP, member.getsockname()[1])
sender = udp()
sender.setsockopt(IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
source = socket.inet_aton(GROUP) + socket.inet_aton("127.0.0.1") + socket.inet_aton("127.0.0.1")
show("source membership", member.setsockopt, IP, 39, source)
sender.sendto(b"from the source", there)
print(heard(member))
show("once more", member.setsockopt, IP, 39, source)
stranger = udp()
stranger.bind(("127.0.0.9", 0))
stranger.setsockopt(IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
stranger.sendto(b"from another", there)
print(heard(member))
show("drop it", member.setsockopt, IP, 40, source)
show("drop it again", member.setsockopt, IP, 40, source)

# MCAST_JOIN_GROUP, which knows both families.
sock = udp()
address = struct.pack("HH4s120x", socket.AF_INET, 0, socket.inet_aton(GROUP))
show("MCAST_JOIN_GROUP", sock.setsockopt, IP, 42, struct.pack("I4x", 1) + address)
show("again", sock.setsockopt, IP, 42, struct.pack("I4x", 1) + address)
show("MCAST_LEAVE_GROUP", sock.setsockopt, IP, 45, struct.pack("I4x", 1) + address)
show("again", sock.setsockopt, IP, 45, struct.pack("I4x", 1) + address)

# IPv6.
member, sender = udp(socket.AF_INET6), udp(socket.AF_INET6)
member.bind(("::", 0))
port = member.getsockname()[1]
show("v6 join", member.setsockopt, V6, socket.IPV6_JOIN_GROUP, mreq6(GROUP6))
show("v6 join again", member.setsockopt, V6, socket.IPV6_JOIN_GROUP, mreq6(GROUP6))
show("v6 join unicast", member.setsockopt, V6, socket.IPV6_JOIN_GROUP, mreq6("2001:db8::1"))
show("v6 join on no number", member.setsockopt, V6, socket.IPV6_JOIN_GROUP, mreq6(GROUP6, 99))
show("v6 interface", sender.setsockopt, V6, socket.IPV6_MULTICAST_IF, 1)
show("v6 as read", sender.getsockopt, V6, socket.IPV6_MULTICAST_IF)
show("v6 no interface", sender.setsockopt, V6, socket.IPV6_MULTICAST_IF, 99)
show("v6 leave", member.setsockopt, V6, socket.IPV6_LEAVE_GROUP, mreq6(GROUP6))
show("v6 leave again", member.setsockopt, V6, socket.IPV6_LEAVE_GROUP, mreq6(GROUP6))
show("v6 hops", sender.setsockopt, V6, socket.IPV6_MULTICAST_HOPS, 7)
show("v6 hops as read", sender.getsockopt, V6, socket.IPV6_MULTICAST_HOPS)
show("v6 TCP joins", socket.socket(socket.AF_INET6).setsockopt, V6, socket.IPV6_JOIN_GROUP, mreq6(GROUP6))
