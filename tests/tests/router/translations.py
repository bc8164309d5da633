# Packets through a router that translates addresses. Arguments: the namespaces of the hosts inside
# and outside. Printed is a line for each packet: what arrives at the other host, or at the sender.
# Outside ports and identifiers are replaced by their order of appearance, because routers choose
# them differently.
import ctypes, os, select, socket, struct, subprocess, sys, time

libc = ctypes.CDLL(None, use_errno=True)
INSIDE, OUTSIDE, OWN = "10.1.0.2", "10.2.0.2", "10.2.0.1"

def packet_socket(namespace, interface, gateway):
    fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    if libc.setns(fd, 0x40000000):
        raise OSError(ctypes.get_errno(), "setns")
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    s.bind((interface, 0x0800))
    with open("/proc/thread-self/net/arp") as arp:
        mac = [line.split()[3] for line in arp if line.split()[0] == gateway][0]
    # The kernel of the host must not answer.
    subprocess.run(["nft", "add table ip quiet; add chain ip quiet in { type filter hook input "
                    "priority 0; policy drop; }"], check=True)
    libc.setns(own, 0x40000000)
    return s, bytes.fromhex(mac.replace(":", "")) + s.getsockname()[4] + b"\x08\x00"

hosts = {INSIDE: packet_socket(sys.argv[1], "l0", "10.1.0.1"),
         OUTSIDE: packet_socket(sys.argv[2], "w0", "10.2.0.1")}

def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff

TCP, UDP, ICMP, GRE = 6, 17, 1, 47
AT = {TCP: 16, UDP: 6, ICMP: 2}

def ip(src, dst, proto, payload, ttl=9, frag=0, whole=None):
    """A packet; `whole` is the payload whose checksum a first fragment has."""
    if proto in AT and frag & 0x1fff == 0:
        summed = whole or payload
        pseudo = socket.inet_aton(src) + socket.inet_aton(dst) + struct.pack(">HH", proto, len(summed))
        total = checksum((b"" if proto == ICMP else pseudo) + summed)
        at = AT[proto]
        payload = payload[:at] + struct.pack(">H", total) + payload[at + 2:]
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 7, frag, ttl, proto, 0,
                       socket.inet_aton(src), socket.inet_aton(dst))
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + payload

def udp(sport, dport, data=b"data"):
    return struct.pack(">HHHH", sport, dport, 8 + len(data), 0) + data

def tcp(sport, dport, flags, seq, ack, data=b""):
    return struct.pack(">HHIIBBHHH", sport, dport, seq, ack, 0x50, flags, 5000, 0, 0) + data

def echo(kind, ident):
    return struct.pack(">BBHHH", kind, 0, 0, ident, 1) + b"ping"

def error(about, kind=11, code=0):
    return struct.pack(">BBHI", kind, code, 0, 0) + about[:28]

names = {}

def name(port):
    return names.setdefault(port, f"P{len(names)}")

def shown(packet, quoted=False):
    """The fields of a packet, and whether its checksums are right."""
    (length, _, frag, ttl, proto) = struct.unpack(">HHHBB", packet[2:10])
    src, dst = socket.inet_ntoa(packet[12:16]), socket.inet_ntoa(packet[16:20])
    rest = packet[20:length]
    text = f"{src}>{dst} {proto}" + ("" if quoted else f" ttl {ttl}")
    text += f" frag {frag & 0x3fff}" if frag & 0x3fff else ""
    text += "" if checksum(packet[:20]) == 0 else " bad header"
    if frag & 0x1fff:
        return f"{text} {len(rest)}"
    if proto in (TCP, UDP):
        ports = struct.unpack(">HH", rest[:4])
        chosen = [name(p) if a == OWN and p not in (8080, 99) else p for a, p in zip((src, dst), ports)]
        text += f" {chosen[0]}>{chosen[1]}"
    elif proto == ICMP and rest[0] in (0, 8):
        ident = struct.unpack(">H", rest[4:6])[0]
        text += f" {rest[0]} id {name(ident) if OWN in (src, dst) else ident}"
    elif proto == ICMP:
        text += f" {rest[0]}/{rest[1]} ({shown(rest[8:], True)})"
    whole = not quoted and not frag & 0x2000 and proto in AT
    # A router may leave the checksum of its own packets to the device, which a veth is not.
    if whole and ttl != 64:
        pseudo = b"" if proto == ICMP else packet[12:20] + struct.pack(">HH", proto, len(rest))
        text += "" if checksum(pseudo + rest) == 0 else " bad checksum"
    return text

def drain(s):
    while select.select([s], [], [], 0)[0]:
        s.recv(65535)

last = {}

def send(about, src, packet):
    for s, _ in hosts.values():
        drain(s)
    s, head = hosts[src]
    s.send(head + packet)
    deadline, found = time.monotonic() + 0.3, []
    while (left := deadline - time.monotonic()) > 0:
        for ready in select.select([s for s, _ in hosts.values()], [], [], left)[0]:
            frame, kind = ready.recvfrom(65535)
            if kind[2] != socket.PACKET_OUTGOING:
                where = [host for host, (s, _) in hosts.items() if s is ready][0]
                last[where] = frame[14:]
                found.append(f"{where}: {shown(frame[14:])}")
    print(f"{about}: {'; '.join(found) or 'nothing'}", flush=True)

def port_of(packet, at=20):
    return struct.unpack(">H", packet[at:at + 2])[0]

send("udp out", INSIDE, ip(INSIDE, OUTSIDE, UDP, udp(4000, 53)))
outside, seen = port_of(last[OUTSIDE]), last[OUTSIDE]
send("udp answer", OUTSIDE, ip(OUTSIDE, OWN, UDP, udp(53, outside)))
send("udp of another port", OUTSIDE, ip(OUTSIDE, OWN, UDP, udp(54, outside)))
send("udp again", INSIDE, ip(INSIDE, OUTSIDE, UDP, udp(4000, 53)))
send("error about udp", OUTSIDE, ip(OUTSIDE, OWN, ICMP, error(seen)))
send("path mtu of udp", OUTSIDE, ip(OUTSIDE, OWN, ICMP, error(seen, 3, 4)))
send("error about nothing", OUTSIDE, ip(OUTSIDE, OWN, ICMP, error(ip(OWN, OUTSIDE, UDP, udp(9, 9)))))
send("ttl of udp", INSIDE, ip(INSIDE, OUTSIDE, UDP, udp(4000, 53), 1))
send("echo out", INSIDE, ip(INSIDE, OUTSIDE, ICMP, echo(8, 77)))
ident = port_of(last[OUTSIDE], 24)
send("echo answer", OUTSIDE, ip(OUTSIDE, OWN, ICMP, echo(0, ident)))
send("echo error", OUTSIDE, ip(OUTSIDE, OWN, ICMP, error(last[OUTSIDE])))
send("syn out", INSIDE, ip(INSIDE, OUTSIDE, TCP, tcp(4001, 80, 2, 100, 0)))
outside = port_of(last[OUTSIDE])
send("syn ack", OUTSIDE, ip(OUTSIDE, OWN, TCP, tcp(80, outside, 18, 500, 101)))
send("ack", INSIDE, ip(INSIDE, OUTSIDE, TCP, tcp(4001, 80, 16, 101, 501)))
send("tcp data", INSIDE, ip(INSIDE, OUTSIDE, TCP, tcp(4001, 80, 24, 101, 501, b"request")))
send("tcp answer", OUTSIDE, ip(OUTSIDE, OWN, TCP, tcp(80, outside, 24, 501, 108, b"answer")))
send("tcp reset", OUTSIDE, ip(OUTSIDE, OWN, TCP, tcp(80, outside, 4, 507, 0)))
send("forwarded", OUTSIDE, ip(OUTSIDE, OWN, UDP, udp(700, 8080)))
seen = last[INSIDE]
send("forwarded answer", INSIDE, ip(INSIDE, OUTSIDE, UDP, udp(80, 700)))
send("forwarded error", INSIDE, ip(INSIDE, OUTSIDE, ICMP, error(seen, 3, 3)))
send("forwarded ttl", OUTSIDE, ip(OUTSIDE, OWN, UDP, udp(700, 8080), 1))
send("gre out", INSIDE, ip(INSIDE, OUTSIDE, GRE, b"\0\0\x08\0" + b"g" * 24))
send("gre back", OUTSIDE, ip(OUTSIDE, OWN, GRE, b"\0\0\x08\0" + b"g" * 24))
large = udp(4002, 53, b"x" * 1992)
send("first fragment", INSIDE, ip(INSIDE, OUTSIDE, UDP, large[:1000], frag=0x2000, whole=large))
send("last fragment", INSIDE, ip(INSIDE, OUTSIDE, UDP, large[1000:], frag=125))
