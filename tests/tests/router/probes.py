# Arguments: the namespaces of the sender and of the receiver. Each probe is an IP packet that the
# router gets; printed is what the receiver sees of it, byte by byte, and the ICMP errors that the
# sender sees: source, type of service, type, code, rest of the header, quoted packet.
import ctypes, os, socket, struct, sys

libc = ctypes.CDLL(None, use_errno=True)
ETH_P_ALL = 3

def packet_socket(namespace, interface):
    fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if libc.setns(fd, 0x40000000):
        raise OSError(ctypes.get_errno(), "setns")
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    s.bind((interface, 0))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    with open(f"/proc/net/arp") as arp:
        macs = [line.split()[3] for line in arp if line.split()[0] == "10.1.0.1"]
    os.close(fd)
    return s, macs

receiver, _ = packet_socket(sys.argv[2], "w0")
sender, macs = packet_socket(sys.argv[1], "l0")
router = bytes.fromhex(macs[0].replace(":", ""))
own = sender.getsockname()[4]

def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff

def v4(payload, ttl=9, proto=17, src="10.1.0.2", dst="10.2.0.2", ident=7, frag=0, options=b"", tos=0x28):
    length = 20 + len(options)
    head = struct.pack(">BBHHHBBH4s4s", 0x40 | length // 4, tos, length + len(payload), ident, frag,
                       ttl, proto, 0, socket.inet_aton(src), socket.inet_aton(dst)) + options
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + payload

def v6(payload, hops=9, proto=17, src="fd00:1::2", dst="fd00:2::2"):
    return struct.pack(">IHBB", 0x6a012345, len(payload), proto, hops) \
        + socket.inet_pton(socket.AF_INET6, src) + socket.inet_pton(socket.AF_INET6, dst) + payload

def udp(n, port=5000):
    return struct.pack(">HHHH", 4000, port, 8 + n, 0) + bytes(i * 7 % 256 for i in range(n))

def send(packet):
    kind = 0x0800 if packet[0] >> 4 == 4 else 0x86dd
    sender.send(router + own + struct.pack(">H", kind) + packet)

MARK = 9999

def seen(s):
    """IP packets until the mark comes by."""
    while True:
        frame, about = s.recvfrom(65536)
        if about[2] == socket.PACKET_OUTGOING or frame[12:14] not in (b"\x08\0", b"\x86\xdd"):
            continue
        yield frame[14:]

def is_mark(p):
    return p[0] >> 4 == 4 and p[9] == 17 and not p[6] & 0x1f and p[22:24] == struct.pack(">H", MARK)

def is_ours(p):
    if p[0] >> 4 == 4:
        return p[12:16] == socket.inet_aton("10.1.0.2") and p[9] not in (2,)
    return p[8:24] == socket.inet_pton(socket.AF_INET6, "fd00:1::2") and not (p[6] == 58 and p[40] in range(130, 138))

def error(p):
    """An ICMP error in words, or None."""
    if p[0] >> 4 == 4 and p[9] == 1 and p[20] in (3, 4, 5, 11, 12):
        return f"{socket.inet_ntoa(p[12:16])} tos {p[1]:#x} ttl {p[8]} icmp {p[20]}/{p[21]} {p[24:28].hex()} about {p[28:].hex()}"
    if p[0] >> 4 == 6 and p[6] == 58 and p[40] < 128:
        source = socket.inet_ntop(socket.AF_INET6, p[8:24])
        return f"{source} hops {p[7]} icmp6 {p[40]}/{p[41]} {p[44:48].hex()} about {p[48:].hex()}"
    return None

def probe(name, *packets):
    for packet in packets:
        send(packet)
    send(v4(udp(0, MARK), ident=1))
    out = []
    for p in seen(receiver):
        if is_mark(p):
            break
        if is_ours(p):
            out.append(p.hex())
    # What the router tells of these packets it has told before it sent the mark on.
    errors = []
    sender.setblocking(False)
    try:
        for p in seen(sender):
            if told := error(p):
                # The receiver's "port unreachable" comes when it likes.
                if not told.startswith(("10.2.0.2 ", "fd00:2::2 ")):
                    errors.append(told)
    except BlockingIOError:
        pass
    sender.setblocking(True)
    print(f"{name}: out {out} errors {errors}")

DF, MF = 0x4000, 0x2000
for ttl in (2, 64, 255):
    probe(f"ttl {ttl}", v4(udp(30), ttl=ttl))
    probe(f"hop limit {ttl}", v6(udp(30), hops=ttl))
for ident in (0, 0x00ff, 0xffff):
    probe(f"ident {ident}", v4(udp(3), ident=ident))
probe("ttl 1", v4(udp(30), ttl=1))
probe("hop limit 1", v6(udp(30), hops=1))
probe("ttl 0", v4(udp(700), ttl=0))
probe("icmp error with ttl 1", v4(b"\x03\x01" + b"\0" * 30, ttl=1, proto=1))
probe("later fragment with ttl 1", v4(udp(30), ttl=1, frag=10))
probe("no route", v4(udp(30), src="10.1.0.11", dst="10.99.0.1"))
probe("no route v6", v6(udp(30), dst="fd00:99::1"))
probe("unreachable", v4(udp(30), src="10.1.0.12", dst="10.8.0.1"))
probe("prohibited", v4(udp(30), src="10.1.0.13", dst="10.7.0.1"))
probe("prohibited v6", v6(udp(30), dst="fd00:7::1"))
probe("blackhole", v4(udp(30), dst="10.6.0.1"))
probe("too big", v4(udp(1400), frag=DF))
probe("too big v6", v6(udp(1400)))
probe("fits", v4(udp(1272), frag=DF), v6(udp(1252)))
probe("cut", v4(udp(1400)))
probe("cut, a fragment in the middle", v4(udp(1400), frag=MF | 100))
probe("cut, the last fragment", v4(udp(1400), frag=100))
probe("cut, with options", v4(udp(1400), options=bytes([0x82, 11]) + b"\1" * 9 + b"\1"))
probe("no operation", v4(udp(30), options=b"\1\1\1\0"))
probe("record route", v4(udp(30), options=bytes([7, 11, 4]) + b"\0" * 9))
probe("record route, full", v4(udp(30), options=bytes([7, 7, 8, 1, 2, 3, 4, 0])))
probe("source route", v4(udp(30), options=bytes([0x83, 7, 4, 10, 2, 0, 9, 0])))
probe("malformed option", v4(udp(30), options=bytes([1, 0x99, 30, 0])))
probe("bad checksum", v4(udp(30))[:10] + b"\1\2" + v4(udp(30))[12:])
probe("loopback source", v4(udp(30), src="127.0.0.1"))
probe("own source", v4(udp(30), src="10.2.0.1"))
probe("group source", v4(udp(30), src="224.0.0.9"))
probe("loopback destination", v4(udp(30), dst="127.0.0.2"))
probe("directed broadcast", v4(udp(30), dst="10.2.0.255"))
probe("routing header", v6(bytes([17, 0, 9, 1, 0, 0, 0, 0]) + udp(30), proto=43))
probe("destination option", v6(bytes([17, 0, 0xbe, 4, 0, 0, 0, 0]) + udp(30), proto=60))
probe("fragment header", v6(bytes([17, 0, 0, 1, 0, 0, 0, 7]) + udp(32), proto=44))
probe("padding", v6(bytes([17, 0, 1, 4, 0, 0, 0, 0]) + udp(30), proto=0))
probe("unknown hop-by-hop option", v6(bytes([17, 0, 0xbe, 4, 0, 0, 0, 0]) + udp(30), proto=0))
probe("hop-by-hop option to skip", v6(bytes([17, 0, 0x1e, 4, 0, 0, 0, 0]) + udp(30), proto=0))
probe("hop-by-hop option to drop", v6(bytes([17, 0, 0x5e, 4, 0, 0, 0, 0]) + udp(30), proto=0))
probe("no next header", v6(b"", proto=59))
probe("loopback source v6", v6(udp(30), src="::1"))

def late(s, pick):
    """What a thread of the router sends after the last mark, until a second passes without packets."""
    s.settimeout(1)
    found = []
    try:
        for p in seen(s):
            if not is_mark(p) and (told := pick(p)):
                found.append(told)
    except TimeoutError:
        return found

out = late(receiver, lambda p: is_ours(p) and p.hex())
errors = [told for told in late(sender, error) if not told.startswith(("10.2.0.2 ", "fd00:2::2 "))]
print(f"late: out {out} errors {errors}")
