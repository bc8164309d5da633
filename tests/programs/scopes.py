"""Sends to groups with several limits; prints what a member on this host heard and what the link saw.

Run as root, with the name of an interface of the program's stack: in the namespace is the other end of its
link, at which a packet socket of the kernel looks.
"""
import itertools
import socket
import struct
import sys

IP, V6 = socket.IPPROTO_IP, socket.IPPROTO_IPV6
NAME, ADDRESS = sys.argv[1:]
INDEX = socket.if_nametoindex(NAME)
PORT = 7000
END = b"end of case %d"

link = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
link.settimeout(20)


def on_link(end):
    """How far datagrams to the port may go that the link's other end receives, up to one that ends so."""
    seen = []
    while True:
        packet, (interface, _, kind, *_) = link.recvfrom(2000)
        if interface in ("lo", NAME) or kind == socket.PACKET_OUTGOING:
            continue
        v6 = packet[0] >> 4 == 6
        protocol, limit, at = (packet[6], packet[7], 40) if v6 else (packet[9], packet[8], 20)
        if protocol == socket.IPPROTO_UDP and packet[at + 2:at + 4] == struct.pack("!H", PORT):
            data = packet[at + 8:]
            if data == end:
                return seen
            if not data.startswith(b"end"):
                seen.append(limit)


def heard(sock, end):
    """How far datagrams might have gone that came, up to one that ends so."""
    seen = []
    while True:
        data, control, _, _ = sock.recvmsg(100, 100)
        if data == end:
            return seen
        if not data.startswith(b"end"):
            seen.append(struct.unpack("i", control[0][2])[0])


def udp(group):
    sock = socket.socket(socket.AF_INET6 if ":" in group else socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.settimeout(20)
    if ":" in group:
        sock.setsockopt(V6, socket.IPV6_MULTICAST_IF, INDEX)
    else:
        sock.setsockopt(IP, socket.IP_MULTICAST_IF, socket.inet_aton(ADDRESS))
    return sock


def case(number, group, limit, message):
    v6 = ":" in group
    member, sender = udp(group), udp(group)
    member.bind(("", PORT))
    if v6:
        member.setsockopt(V6, socket.IPV6_RECVHOPLIMIT, 1)
        member.setsockopt(V6, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, group) + struct.pack("i", INDEX))
    else:
        member.setsockopt(IP, 12, 1)
        member.setsockopt(IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + socket.inet_aton(ADDRESS))
    if limit is not None:
        sender.setsockopt(*((V6, socket.IPV6_MULTICAST_HOPS) if v6 else (IP, socket.IP_MULTICAST_TTL)), limit)
    control = [] if message is None else [(*((V6, socket.IPV6_HOPLIMIT) if v6 else (IP, socket.IP_TTL)), struct.pack("i", message))]
    sent = sender.sendmsg([b"x"], control, 0, (group, PORT))
    end = END % number
    sender.sendto(end, ("::1" if v6 else "127.0.0.1", PORT))
    # The same way, as far as the link.
    udp(group).sendto(end, ("ff02::99" if v6 else "224.0.0.99", PORT))
    print(group, "option", limit, "message", message, "sent", sent, "heard", heard(member, end), "on the link", on_link(end))


V4_GROUPS = ("239.1.2.3", "224.0.0.251")
V6_GROUPS = ("ff00::77", "ff01::77", "ff01::1", "ff11::77", "ff02::77", "ff02::1", "ff05::77", "ff0e::77")
CASES = itertools.chain(itertools.product(V4_GROUPS, (None, 0, -1, 5), (None, 4)),
                        itertools.product(V6_GROUPS, (None, 0, -1, 5), (None, -1, 0, 4)))
for number, arguments in enumerate(CASES):
    case(number, *arguments)
