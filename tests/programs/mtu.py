"""Sends datagrams that fit the link and others in each way of IP_MTU_DISCOVER; prints what the calls said and
what the link saw.

Run as root, with the name of an interface of the program's stack and a neighbour that it can send to: in the
namespace is the other end of its link, at which a packet socket of the kernel looks.
"""
import errno
import socket
import struct
import sys

NAME, PEER = sys.argv[1:]
PORT = 7000
V6 = ":" in PEER
LEVEL, DISCOVER, MTU, RECVERR = (41, 23, 24, 25) if V6 else (0, 10, 14, 11)

link = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
link.settimeout(20)


def on_link(end):
    """The packets to the port, up to the datagram that ends so: whole or a piece, and DF."""
    seen = []
    while True:
        packet, (interface, _, kind, *_) = link.recvfrom(70000)
        if interface in ("lo", NAME) or kind == socket.PACKET_OUTGOING:
            continue
        if packet.endswith(end):
            return seen
        if packet[0] >> 4 == 6:
            if packet[6] in (17, 44):
                seen.append("whole" if packet[6] == 17 else "piece")
        elif packet[9] == 17:
            fragment = struct.unpack("!H", packet[6:8])[0]
            df = " DF" if fragment & 0x4000 else ""
            seen.append(("piece" if fragment & 0x3fff else "whole") + df)


def attempt(call):
    try:
        return call()
    except OSError as e:
        return errno.errorcode[e.errno]


def queued(sock):
    try:
        data, control, _, addr = sock.recvmsg(100, 512, socket.MSG_ERRQUEUE)
    except BlockingIOError:
        return None
    number, origin, kind, code, info = struct.unpack("iBBBxI", control[0][2][:12])
    return errno.errorcode[number], origin, info, data, addr[:2]


for mode in (None, 0, 1, 2, 3, 4, 5):
    for asks in (0, 1):
        s = socket.socket(socket.AF_INET6 if V6 else socket.AF_INET, socket.SOCK_DGRAM)
        s.setsockopt(LEVEL, RECVERR, asks)
        if mode is not None:
            s.setsockopt(LEVEL, DISCOVER, mode)
        s.connect((PEER, PORT))
        fits = 1500 - (48 if V6 else 28)
        sent = [attempt(lambda: s.send(bytes(n))) for n in (fits, fits + 1, fits + 1, 4000, fits)]
        pending = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        reports = [queued(s) for _ in range(4)]
        end = b"end %d of %d" % (asks, -1 if mode is None else mode)
        s.send(end)
        print(mode, asks, sent, pending, reports, s.getsockopt(LEVEL, MTU), on_link(end))
