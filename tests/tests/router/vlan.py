"""Stands for the kernel's VLAN interfaces, where the kernel has none: carries frames between a trunk
and one interface for each tag. Words: TRUNK, then INTERFACE=TAG for each."""
import select
import socket
import struct
import sys

SOL_PACKET, ADD_MEMBERSHIP, AUXDATA, IGNORE_OUTGOING = 263, 1, 8, 23
PROMISC, TAG_VALID = 1, 1 << 4


def open_packet(name):
    it = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    it.bind((name, 0))
    member = struct.pack("iHH8s", socket.if_nametoindex(name), PROMISC, 0, b"")
    it.setsockopt(SOL_PACKET, ADD_MEMBERSHIP, member)
    it.setsockopt(SOL_PACKET, AUXDATA, 1)
    it.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    return it


trunk = open_packet(sys.argv[1])
words = [word.split("=") for word in sys.argv[2:]]
ports = {int(tag): open_packet(name) for name, tag in words}
print("ready", flush=True)
while True:
    for ready in select.select([trunk, *ports.values()], [], [])[0]:
        frame, ancillary, _, _ = ready.recvmsg(1 << 17, 256)
        if ready is trunk:
            status, _, _, _, _, tci, _ = struct.unpack("IIIHHHH", ancillary[0][2])
            port = ports.get(tci & 0xFFF) if status & TAG_VALID else None
            if port:
                port.send(frame)
        else:
            tag = next(tag for tag, port in ports.items() if port is ready)
            trunk.send(frame[:12] + struct.pack(">HH", 0x8100, tag) + frame[12:])
