"""`frames.py DEVICE SEED COUNT`: sends COUNT hostile frames into a TAP device while a connection of its own
to port 7700 keeps working. Same seed, same frames (but for the port of that connection).

Left out is what a host on an Ethernet must believe: well-formed ARP and ND that name the neighbour's
address, and segments that hit the sequence number exactly.
"""
import hashlib
import http.client
import random
import socket
import struct
import sys
import time

DEVICE, SEED, COUNT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
US, THEM, PORT = "10.77.0.1", "10.77.0.2", 7700
US6, THEM6 = "fd00:77::1", "fd00:77::2"
dice = random.Random(SEED)


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def bits32():
    return dice.getrandbits(32)


def junk(most=64):
    return dice.randbytes(dice.randrange(most))


def ethernet(kind, payload, destination=None):
    return (destination or MAC) + OWN_MAC + struct.pack("!H", kind) + payload


def ipv4(protocol, payload, source=US, destination=THEM, options=b"", fragment=0, ttl=64, length=None, sum_off=0, version=4,
         header_words=None):
    words = header_words if header_words is not None else 5 + len(options) // 4
    length = 20 + len(options) + len(payload) if length is None else length
    ident = dice.getrandbits(16) if not fragment else IDENT[0]
    header = struct.pack("!BBHHHBBH4s4s", version << 4 | words & 15, 0, length & 0xFFFF, ident, fragment, ttl, protocol, 0,
                         socket.inet_aton(source), socket.inet_aton(destination)) + options
    total = (checksum(header) + sum_off) & 0xFFFF
    return ethernet(0x0800, header[:10] + struct.pack("!H", total) + header[12:] + payload)


def ipv6(protocol, payload, source=US6, destination=THEM6, hops=64, length=None):
    length = len(payload) if length is None else length
    return ethernet(0x86DD, struct.pack("!IHBB", 6 << 28, length & 0xFFFF, protocol, hops)
                    + socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, destination) + payload)


def pseudo(source, destination, protocol, length):
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    addresses = socket.inet_pton(family, source) + socket.inet_pton(family, destination)
    return addresses + (struct.pack("!II", length, protocol) if ":" in source else struct.pack("!BBH", 0, protocol, length))


def tcp(source_port, destination_port, flags, options=b"", payload=b"", source=US, destination=THEM, sum_off=0, words=None,
        seq=None):
    options += b"\0" * (-len(options) % 4)
    words = 5 + len(options) // 4 if words is None else words
    header = struct.pack("!HHIIBBHHH", source_port, destination_port, bits32() if seq is None else seq, bits32(),
                         (words & 15) << 4 | flags >> 8 & 1, flags & 255, dice.getrandbits(16), 0, dice.getrandbits(16))
    body = header + options + payload
    total = (checksum(pseudo(source, destination, 6, len(body)) + body) + sum_off) & 0xFFFF
    body = body[:16] + struct.pack("!H", total) + body[18:]
    return ipv6(6, body, source, destination) if ":" in source else ipv4(6, body, source, destination)


def udp(destination_port, payload, length=None, source=US, destination=THEM, sum_off=0, source_port=None):
    length = 8 + len(payload) if length is None else length
    body = struct.pack("!HHHH", source_port or dice.randrange(1, 65536), destination_port, length, 0) + payload
    total = (checksum(pseudo(source, destination, 17, len(body)) + body) + sum_off) & 0xFFFF or 0xFFFF
    return ipv4(17, body[:6] + struct.pack("!H", total) + body[8:], source, destination)


def icmp(kind, code, rest, source=US, sum_off=0):
    body = struct.pack("!BBH", kind, code, 0) + rest
    return ipv4(1, body[:2] + struct.pack("!H", (checksum(body) + sum_off) & 0xFFFF) + body[4:], source)


def icmp6(kind, code, rest, source=US6, destination=THEM6, hops=255, sum_off=0):
    body = struct.pack("!BBH", kind, code, 0) + rest
    total = (checksum(pseudo(source, destination, 58, len(body)) + body) + sum_off) & 0xFFFF
    return ipv6(58, body[:2] + struct.pack("!H", total) + body[4:], source, destination, hops)


def garbage():
    return dice.randbytes(dice.randrange(14, 1514))


def garbage_inside():
    kind = dice.choice((0x0800, 0x0806, 0x86DD, 0x8100, 0x88A8, 0x0800, 0x86DD))
    return ethernet(kind, dice.randbytes(dice.randrange(200)))


def unknown_kind():
    return dice.choice((ethernet(0x88CC, junk()), ethernet(100, b"\xaa\xaa\3" + junk()), ethernet(0x8100, junk()),
                        ethernet(0x0800, junk(), b"\x02\x99\x99\x99\x99\x99")))


def truncated():
    frame = dice.choice((any_tcp, lambda: udp(9, junk()), lambda: icmp(8, 0, junk()), lambda: icmp6(128, 0, junk()), arp))()
    return frame[:dice.randrange(14, max(15, len(frame)))]


def flipped():
    frame = bytearray(dice.choice((any_tcp, lambda: udp(9, junk(300)), lambda: icmp(8, 0, junk(300))))())
    for _ in range(dice.randrange(1, 4)):
        frame[dice.randrange(14, len(frame))] ^= 1 << dice.randrange(8)
    return bytes(frame)


def looping():
    return dice.choice((
        lambda: tcp(PORT, PORT, 2, source=THEM), lambda: tcp(PORT, PORT, 2, source=THEM6, destination=THEM6),
        lambda: udp(PORT, junk(), source=THEM), lambda: tcp(1, PORT, 2, source="127.0.0.1"),
        lambda: udp(9, junk(), source="255.255.255.255"), lambda: tcp(1, PORT, 2, source="224.0.0.1"),
        lambda: tcp(1, PORT, 2, destination="10.77.0.255"), lambda: udp(9, junk(), destination="10.77.0.99"),
        lambda: tcp(1, PORT, 2, source="0.0.0.0"), lambda: ipv6(6, junk(), source="::1"),
        lambda: ipv6(6, junk(), source="ff02::1"), lambda: ipv6(17, junk(), destination="2001:db8::9"),
        lambda: ipv6(6, junk(), source="::ffff:10.77.0.1")))()


def bad_sums():
    off = dice.randrange(1, 65535)
    return dice.choice((lambda: tcp(dice.choice((1, OWN_PORT[0])), PORT, 16, payload=junk(), sum_off=off),
                        lambda: udp(9, junk(), sum_off=off), lambda: icmp(8, 0, junk() + b"\0" * 4, sum_off=off),
                        lambda: icmp6(128, 0, junk() + b"\0" * 4, sum_off=off), lambda: ipv4(17, junk(), sum_off=off)))()


IDENT = [0]


def fragments():
    if dice.random() < 0.2:
        IDENT[0] = dice.getrandbits(16)
    offset = dice.choice((0, 1, 2, 3, dice.randrange(190), dice.randrange(8192), 8191))
    more = dice.choice((0, 0x2000))
    payload = dice.randbytes(dice.choice((0, 8, 16, 24, 13, 1400)))
    if dice.random() < 0.7:
        return ipv4(dice.choice((6, 17, 1)), payload, fragment=offset | more or 0x2000,
                    source=dice.choice((US, f"10.77.0.{dice.randrange(3, 250)}")))
    header = struct.pack("!BBHI", dice.choice((6, 17, 58, 44, 0)), 0, offset << 3 | bool(more), dice.choice((7, bits32())))
    return ipv6(44, header + payload)


def ip_nonsense():
    return dice.choice((
        lambda: ipv4(6, junk(), version=dice.randrange(16)), lambda: ipv4(6, junk(), header_words=dice.randrange(16)),
        lambda: ipv4(6, junk(), length=dice.getrandbits(16)), lambda: ipv4(6, junk(), ttl=0),
        lambda: ipv4(17, junk(), options=dice.randbytes(4 * dice.randrange(1, 10))),
        lambda: ipv4(17, junk(), options=b"\x83\x07\x04\x0a\x4d\0\x01\0"), lambda: ipv4(17, junk(), options=b"\x89\x07\x04\x0a\x4d\0\x01\0"),
        lambda: ipv4(17, junk(), options=b"\x07\0\0\0"), lambda: ipv4(dice.randrange(256), junk()), lambda: ipv4(132, junk()),
        lambda: ipv6(dice.randrange(256), junk(), length=dice.getrandbits(16)), lambda: ipv6(6, junk(), length=0),
        lambda: ipv6(0, struct.pack("!BB", dice.choice((0, 6, 17, 43, 60)), dice.choice((0, 1, 255))) + dice.randbytes(14)),
        lambda: ipv6(43, struct.pack("!BBBB", 6, 2, 0, 1) + dice.randbytes(20)),
        lambda: ipv6(0, b"\x3c\0\1\4\0\0\0\0" + b"\x3c\0\1\4\0\0\0\0" * dice.randrange(100) + b"\x3b\0\1\4\0\0\0\0"),
        lambda: ipv6(59, junk())))()


def any_tcp():
    flags = dice.getrandbits(9)
    ports = dice.choice(((OWN_PORT[0], PORT), (dice.randrange(1, 65536), PORT), (dice.randrange(1, 65536), dice.randrange(65536)), (0, 0)))
    return tcp(*ports, flags, payload=junk(200))


def tcp_options():
    options = dice.choice((
        lambda: b"\2\0", lambda: b"\2\4\0\0", lambda: b"\2\4\xff\xff", lambda: b"\2\5\0\0\0", lambda: b"\3\3\xff", lambda: b"\3\4\1\1",
        lambda: b"\x05\x0a" + dice.randbytes(8), lambda: b"\x05\x22" + dice.randbytes(32), lambda: b"\x05\x02", lambda: b"\x05\xff",
        lambda: b"\x08\x0a" + dice.randbytes(8), lambda: b"\x08\x03\0", lambda: b"\1" * 40, lambda: b"\x13\x12" + dice.randbytes(16),
        lambda: b"\x22\x02", lambda: b"\x22\x12" + dice.randbytes(16), lambda: b"\xfd\xff" + junk(36), lambda: dice.randbytes(40),
        lambda: b"\2\4\5\xb4" * 10, lambda: b"\1\1\1\x02"))()[:40]
    return tcp(dice.choice((OWN_PORT[0], dice.randrange(1, 65536))), PORT, dice.choice((2, 16, 18, 24, 4, 2)), options, junk(),
               words=dice.choice((None, None, None, dice.randrange(16))))


def syn_flood():
    source = dice.choice((f"10.77.0.{dice.randrange(3, 250)}", socket.inet_ntoa(struct.pack("!I", bits32()))))
    return tcp(dice.randrange(1, 65536), PORT, 2, b"\2\4\5\xb4\4\2\3\3\7\1", source=source)


def arp():
    sender, target = dice.randbytes(4), socket.inet_aton(THEM)
    if dice.random() < 0.3:
        sender = socket.inet_aton(f"10.77.0.{dice.randrange(3, 250)}")
    kinds = dice.choice(((1, 0x0800, 6, 4), (1, 0x0800, dice.randrange(256), dice.randrange(256)), (dice.getrandbits(16), 0x0800, 6, 4),
                         (1, 0x86DD, 6, 16)))
    if sender == socket.inet_aton(US):
        sender = b"\0" * 4
    mac = dice.choice((OWN_MAC, b"\xff" * 6, b"\0" * 6, b"\1" + dice.randbytes(5), dice.randbytes(6)))
    return ethernet(0x0806, struct.pack("!HHBBH", *kinds, dice.choice((0, 1, 2, 3, 65535))) + mac + sender + b"\0" * 6
                    + dice.choice((target, sender, dice.randbytes(4))), dice.choice((None, b"\xff" * 6)))


def neighbor_discovery():
    elsewhere = socket.inet_pton(socket.AF_INET6, f"fd00:77::{dice.randrange(3, 65536):x}")
    option = dice.choice((b"", b"\1\0" + junk(10), b"\2\1" + OWN_MAC, b"\1\xff" + junk(30), b"\3\4\x40\xc0" + dice.randbytes(28), junk(40)))
    return dice.choice((
        lambda: icmp6(135, 0, b"\0" * 4 + elsewhere + option), lambda: icmp6(136, 0, b"\x60\0\0\0" + elsewhere + option),
        lambda: icmp6(135, 0, b"\0" * 4 + socket.inet_pton(socket.AF_INET6, THEM6) + option, hops=64),
        lambda: icmp6(136, 0, junk(30)), lambda: icmp6(134, 0, dice.randbytes(12) + option, source="fe80::bad"),
        lambda: icmp6(134, 0, junk(12)), lambda: icmp6(137, 0, b"\0" * 4 + dice.randbytes(32) + option),
        lambda: icmp6(135, 0, b"\0" * 4 + b"\xff\2" + b"\0" * 13 + b"\1"), lambda: icmp6(dice.randrange(256), dice.randrange(256), junk()),
        lambda: icmp6(130, 0, junk(30), source="fe80::bad", hops=1), lambda: icmp6(143, 0, junk(60), hops=1)))()


def icmp_errors():
    inner_ports = dice.choice(((PORT, OWN_PORT[0]), (PORT, dice.randrange(65536)), (dice.randrange(65536), PORT)))
    inner = tcp(*inner_ports, 16, source=THEM, destination=US)[14:]
    inner = inner[:dice.choice((28, 40, 20, 8, 0, 60))]
    mtu = dice.choice((0, 68, 576, 1400, 65535))
    return dice.choice((
        lambda: icmp(3, dice.randrange(16), struct.pack("!HH", 0, mtu) + inner), lambda: icmp(3, 4, struct.pack("!HH", 0, mtu) + inner),
        lambda: icmp(11, dice.randrange(2), b"\0" * 4 + inner), lambda: icmp(4, 0, b"\0" * 4 + inner), lambda: icmp(12, 0, b"\0" * 4 + inner),
        lambda: icmp(5, 1, socket.inet_aton("10.77.0.66") + inner), lambda: icmp(dice.randrange(256), dice.randrange(256), junk()),
        lambda: icmp(3, 3, junk(6)), lambda: icmp6(2, 0, struct.pack("!I", mtu) + tcp(PORT, OWN_PORT[0], 16, source=THEM6, destination=US6)[14:]),
        lambda: icmp6(1, 4, b"\0" * 4 + junk(80)), lambda: icmp(13, 0, junk()), lambda: icmp(8, 0, dice.randbytes(1400))))()


def udp_nonsense():
    return dice.choice((lambda: udp(dice.randrange(65536), junk()), lambda: udp(9, junk(), length=dice.getrandbits(16)),
                        lambda: udp(0, junk()), lambda: udp(7, junk(), source_port=7), lambda: udp(9, junk(), length=7)))()


KINDS = (garbage, garbage_inside, unknown_kind, truncated, flipped, looping, bad_sums, fragments, ip_nonsense, any_tcp, tcp_options,
         syn_flood, arp, neighbor_discovery, icmp_errors, udp_nonsense)


class Connection:
    """One connection that must survive all of it."""

    def __init__(self):
        self.http = http.client.HTTPConnection(THEM, PORT, timeout=20)
        self.http.connect()
        self.port = self.http.sock.getsockname()[1]
        self.uses = 0

    def use(self):
        body = random.Random(self.uses).randbytes(50_000)
        self.http.request("PUT", "/", body)
        digest = self.http.getresponse().read().decode().strip()
        assert digest == hashlib.blake2b(body).hexdigest(), "another checksum"
        assert self.http.sock and self.http.sock.getsockname()[1] == self.port, "another connection"
        self.uses += 1


connection = Connection()
connection.use()
OWN_PORT = [connection.port]
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
wire.bind((DEVICE, 0))
OWN_MAC = wire.getsockname()[4]
arp_table = [line.split() for line in open("/proc/net/arp")]
MAC = bytes.fromhex(next(row[3] for row in arp_table if row[0] == THEM).replace(":", ""))
sent = 0
storm = None
for number in range(COUNT):
    # Now and then many of one kind in a row: limits are reached that way.
    if number % 500 == 0:
        connection.use()
        storm = dice.choice(KINDS) if dice.random() < 0.4 else None
    frame = (storm or dice.choice(KINDS))()
    try:
        wire.send(frame[:1514])
        sent += 1
    except OSError:
        pass  # The device's queue is full: that frame is lost, as frames are.
    if number % 20 == 0:
        time.sleep(0.001)
connection.use()
print(f"sent {sent > COUNT * 0.9}, used {connection.uses}")
