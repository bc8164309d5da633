# Verdicts of rules about packets. Arguments: the namespaces of the sender and of the receiver, and
# "nft NAMESPACE" or "acl TOWPATH NAME", which says whose rules are set. Printed is a line for each
# list and packet: whether it arrived, and whether its transport header is hidden from rules.
import ctypes, os, socket, struct, subprocess, sys

libc = ctypes.CDLL(None, use_errno=True)

def packet_socket(namespace, interface):
    fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    if libc.setns(fd, 0x40000000):
        raise OSError(ctypes.get_errno(), "setns")
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    s.bind((interface, 0))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    with open("/proc/thread-self/net/arp") as arp:
        macs = [line.split()[3] for line in arp if line.split()[0] == "10.1.0.1"]
    libc.setns(own, 0x40000000)
    os.close(fd)
    os.close(own)
    return s, macs

receiver, _ = packet_socket(sys.argv[2], "w0")
sender, macs = packet_socket(sys.argv[1], "l0")
router = bytes.fromhex(macs[0].replace(":", ""))
own = sender.getsockname()[4]

def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff

MF, MARK = 0x2000, 9999
TCP, UDP, ICMP, ICMP6, SCTP, AH = 6, 17, 1, 58, 132, 51
HOPS, ROUTING, FRAGMENT, NONE, OPTIONS = 0, 43, 44, 59, 60

def v4(payload, proto, ident, frag=0, options=b""):
    length = 20 + len(options)
    head = struct.pack(">BBHHHBBH4s4s", 0x40 | length // 4, 0, length + len(payload), ident, frag, 64,
                       proto, 0, socket.inet_aton("10.1.0.2"), socket.inet_aton("10.2.0.2")) + options
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + payload

def v6(payload, proto, ident):
    return struct.pack(">IHBB", 0x60000000 | ident, len(payload), proto, 64) \
        + socket.inet_pton(socket.AF_INET6, "fd00:1::2") \
        + socket.inet_pton(socket.AF_INET6, "fd00:2::2") + payload

def tcp(dport, flags, sport=4000):
    return struct.pack(">HHIIBBHHH", sport, dport, 7, 0, 0x50, flags, 1000, 0, 0) + b"x" * 12

def udp(dport, sport=4000):
    return struct.pack(">HHHH", sport, dport, 32, 0) + b"y" * 24

def icmp(kind, code=0):
    return struct.pack(">BBHHH", kind, code, 0, 1, 1) + b"z" * 24

def header(kind, next, count=1):
    """So many extension headers of a kind, the last of which names `next`: the bytes, the first."""
    body = {HOPS: b"\1\4\0\0\0\0", OPTIONS: b"\1\4\0\0\0\0", ROUTING: b"\4\0\0\0\0\0"}
    out = b""
    for _ in range(count):
        if kind == AH:
            out = bytes([next, 4]) + b"\0" * 22 + out
        else:
            out = bytes([next, 0]) + body[kind] + out
        next = kind
    return out, next

def chained(chain, next, payload):
    for kind, count in reversed(chain):
        bytes, next = header(kind, next, count)
        payload = bytes + payload
    return payload, next

def fragment(next, offset, more, payload):
    return struct.pack(">BBHI", next, 0, offset | more, 9) + payload

# Transports by name. Both families have them, but ICMP.
SYN, ACK, FIN, PSH = 2, 16, 1, 8
BOTH = {
    "syn to 22": (TCP, tcp(22, SYN)), "syn+ack to 22": (TCP, tcp(22, SYN | ACK)),
    "ack to 22": (TCP, tcp(22, ACK)), "syn to 80": (TCP, tcp(80, SYN)),
    "fin from 53": (TCP, tcp(1234, FIN | ACK, sport=53)), "null to 81": (TCP, tcp(81, 0)),
    "udp to 22": (UDP, udp(22)), "udp from 53": (UDP, udp(5353, sport=53)), "udp to 80": (UDP, udp(80)),
    "sctp to 22": (SCTP, tcp(22, 0)), "protocol 47": (47, b"\0" * 24), "authenticated": (AH, header(AH, TCP)[0] + tcp(22, SYN)),
}
V4 = {"ping": (ICMP, icmp(8)), "pong": (ICMP, icmp(0)), "unreachable": (ICMP, icmp(3, 1))}
V6 = {"ping": (ICMP6, icmp(128)), "pong": (ICMP6, icmp(129)), "too big": (ICMP6, icmp(2))}
CHAINS = {
    "": [], "1 options": [(OPTIONS, 1)], "hop-by-hop": [(HOPS, 1)], "routing": [(ROUTING, 1)],
    "hop-by-hop, routing, options": [(HOPS, 1), (ROUTING, 1), (OPTIONS, 1)],
    "9 options": [(OPTIONS, 9)], "31 options": [(OPTIONS, 31)], "33 options": [(OPTIONS, 33)],
    "150 options": [(OPTIONS, 150)], "20 routing, 20 options": [(ROUTING, 20), (OPTIONS, 20)],
    "authentication": [(AH, 1)], "options, 5 authentication": [(OPTIONS, 2), (AH, 5)],
}

packets = []  # Name, whether the transport is hidden, and how the packet is made of its number.
def add(name, make, hidden=False):
    packets.append((name, hidden, make))

def add_v4(name, proto, payload, hidden=False, **more):
    add("v4 " + name, lambda ident: v4(payload, proto, ident, **more), hidden)

def add_v6(name, chain, next, payload, hidden=False):
    payload, first = chained(chain, next, payload)
    # Rules end at an authentication header, which is of protocol 51.
    hidden = hidden and not any(kind == AH for kind, _ in chain)
    add("v6 " + name, lambda ident: v6(payload, first, ident), hidden)

for name, (proto, payload) in (BOTH | V4).items():
    add_v4(name, proto, payload)
    add_v4(name + ", options", proto, payload, options=b"\1" * 8)
    add_v4(name + ", first fragment", proto, payload[:24], frag=MF)
    for units in (3, 8, 100):
        add_v4(f"{name}, fragment at {8 * units}", proto, payload[:24], frag=MF | units)
    for units in (1, 2):
        add_v4(f"{name}, fragment at {8 * units}", proto, payload[:24], frag=units, hidden=True)
for length in (0, 8, 16):
    add_v4(f"syn, first {length} bytes", TCP, tcp(22, SYN)[:length], frag=MF, hidden=True)
add_v4("udp, first 8 bytes", UDP, udp(22)[:8], frag=MF)
add_v4("udp, no byte", UDP, b"", frag=MF, hidden=True)

for chain_name, chain in CHAINS.items():
    for name, (next, payload) in (BOTH | V6).items():
        if len(chain) == 0 or name in ("syn to 22", "ack to 22", "syn to 80", "udp to 22", "ping"):
            add_v6(f"{name} behind {chain_name}", chain, next, payload)
    piece, first = chained(chain[1:], TCP, tcp(22, SYN))
    if len(piece) % 8 == 0:
        add_v6(f"syn, first fragment with {chain_name}", chain[:1], FRAGMENT, fragment(first, 0, 1, piece))
    add_v6(f"syn, atomic fragment with {chain_name}", chain[:1], FRAGMENT, fragment(first, 0, 0, piece))
    for offset in (24, 64, 800):
        for next in (TCP, UDP, OPTIONS, ICMP6):
            add_v6(f"fragment at {offset} of {next} with {chain_name}", chain, FRAGMENT, fragment(next, offset, 1, tcp(22, SYN)[:24]))
    for offset in (8, 16):
        for next in (TCP, UDP, OPTIONS, NONE):
            add_v6(f"fragment at {offset} of {next} with {chain_name}", chain, FRAGMENT, fragment(next, offset, 0, tcp(22, SYN)[:24]), True)
    for length in (0, 8, 16):
        piece, first = chained(chain[1:], TCP, tcp(22, SYN)[:length])
        is_seen = any(kind == AH for kind, _ in chain)
        add_v6(f"syn, first {length} bytes with {chain_name}", chain[:1], FRAGMENT,
               fragment(first, 0, 1, piece), not is_seen)
    add_v6(f"no next header behind {chain_name}", chain, NONE, b"")
    add_v6(f"no transport behind {chain_name}", chain, TCP, b"")
    add_v6(f"cut options behind {chain_name}", chain, OPTIONS, bytes([TCP, 200, 1, 4, 0, 0, 0, 0]), True)
    add_v6(f"half a header behind {chain_name}", chain, ROUTING, bytes([TCP]), True)
    add_v6(f"fragment of a fragment behind {chain_name}", chain, FRAGMENT,
           fragment(FRAGMENT, 0, 0, fragment(TCP, 0, 0, tcp(22, SYN))), True)

# Lists: rules in words of both, the default, and named sets with their members and type in nftables.
def rule(acl, nft, action):
    return acl, nft, action
NETS = [("nets", "10.1.0.0/30,10.9.0.0/16", "ipv4_addr"), ("nets6", "fd00:1::/64", "ipv6_addr")]
PORTS = [("web", "80,443,8000-8100", "inet_service")]
LISTS = [
    ([rule("proto tcp dport 22", "tcp dport 22", "drop")], "accept"),
    ([rule("proto tcp dport 22", "tcp dport 22", "accept")], "drop"),
    ([rule("proto tcp flags syn,!ack", "tcp flags & (syn|ack) == syn", "drop")], "accept"),
    ([rule("proto tcp flags !syn", "tcp flags & syn == 0", "accept")], "drop"),
    ([rule("proto udp dport 20-30", "udp dport 20-30", "drop"), rule("proto tcp sport 53", "tcp sport 53", "drop")], "accept"),
    ([rule("proto udp sport 53", "udp sport 53", "accept"), rule("proto icmp", "meta l4proto icmp", "accept")], "drop"),
    ([rule("proto icmp icmp 8", "icmp type 8", "drop"), rule("proto icmp6 icmp 128", "icmpv6 type 128", "drop")], "accept"),
    ([rule("proto icmp icmp 3/1", "icmp type 3 icmp code 1", "accept"), rule("proto icmp6", "meta l4proto 58", "accept")], "drop"),
    ([rule("proto tcp", "meta l4proto tcp", "drop")], "accept"),
    ([rule("proto tcp", "meta l4proto tcp", "accept")], "drop"),
    ([rule("src fd00:1::/64 proto tcp dport 80", "ip6 saddr fd00:1::/64 tcp dport 80", "accept"),
      rule("dst fd00:2::2", "ip6 daddr fd00:2::2", "drop"), rule("proto 47", "meta l4proto 47", "drop")], "accept"),
    ([rule("proto 132", "meta l4proto 132", "accept"), rule("proto tcp dport 80 flags syn", "tcp dport 80 tcp flags & syn == syn", "accept")], "drop"),
    ([rule("proto tcp dport 22,80-90,8000", "tcp dport { 22, 80-90, 8000 }", "accept")], "drop"),
    ([rule("src 10.0.0.0/24,10.1.0.0/24", "ip saddr { 10.0.0.0/24, 10.1.0.0/24 }", "drop"),
      rule("proto udp sport 53,54", "udp sport { 53, 54 }", "drop")], "accept"),
    ([rule("src @nets proto udp", "ip saddr @nets meta l4proto udp", "accept"), rule("src @nets6", "ip6 saddr @nets6", "accept")], "drop", NETS),
    ([rule("dst @nets", "ip daddr @nets", "drop"), rule("proto tcp dport @web", "tcp dport @web", "drop")], "accept", NETS + PORTS),
    ([rule("proto tcp dport 22,80", "tcp dport { 22, 80 }", "mark 7"), rule("mark 7 proto tcp flags ack", "meta mark 7 tcp flags & ack == ack", "mark 8"),
      rule("mark 8", "meta mark 8", "drop"), rule("mark 7", "meta mark 7", "accept")], "drop"),
    # The bucket receives nothing during the test, so that the first packets alone match.
    ([rule("proto tcp dport 22 rate 1/d burst 7", "tcp dport 22 limit rate 1/day burst 7 packets", "accept"),
      rule("proto udp dport 22 rate 1/d", "udp dport 22 limit rate 1/day burst 5 packets", "accept")], "drop"),
    ([rule("proto tcp rate 1/d burst 3 dport 22", "tcp dport 22 limit rate 1/day burst 3 packets", "mark 9"), rule("mark 9", "meta mark 9", "drop")], "accept"),
]

def has_transport(acl):
    return any(word in ("sport", "dport", "flags", "icmp") for word in acl.replace("proto icmp", "").split())

def set_rules(rules, default, sets=()):
    if sys.argv[3] == "nft":
        def in_nft(action):
            return action.replace("mark", "meta mark set")
        lines = [f"{nft} {in_nft(action)}" for _, nft, action in rules]
        # Linux 6.18 reads ports from later fragments' data (nft_payload_fast_eval looks at no
        # offset): those are judged by the rules without such conditions.
        later = [f"{nft} {in_nft(action)}" for acl, nft, action in rules if not has_transport(acl)]
        named = "".join(f"set {name} {{\ntype {kind}; flags interval; elements = {{ {members} }}\n}}\n" for name, members, kind in sets)
        text = "flush ruleset\ntable inet t {\n" + named + "chain later {\n" + "\n".join(later) \
            + f"\n{default}\n}}\nchain c {{\ntype filter hook forward priority 0; policy {default};\n" \
            + "ip frag-off & 0x1fff != 0 goto later\nfrag frag-off != 0 goto later\n" \
            + f"udp dport {MARK} accept\n" + "\n".join(lines) + "\n}\n}\n"
        line = ["ip", "netns", "exec", sys.argv[4], "nft", "-f", "-"]
    else:
        lines = [f"acl set {name} {members}" for name, members, _ in sets]
        lines += [f"acl add id 1 proto udp dport {MARK} action accept"]
        lines += [f"acl add id {n} {acl} action {action}" for n, (acl, _, action) in enumerate(rules, 2)]
        text = "\n".join(lines) + f"\nacl default hook forward action {default}\n"
        line = [sys.argv[4], "acl", "--name", sys.argv[5], "load", "-"]
    subprocess.run(line, input=text, text=True, check=True, stdout=subprocess.DEVNULL)

def number(p):
    """Number of a packet that arrived, or None of one that is none of these."""
    if p[0] >> 4 == 4:
        return struct.unpack(">H", p[4:6])[0] if p[12:16] == socket.inet_aton("10.1.0.2") else None
    is_ours = p[8:24] == socket.inet_pton(socket.AF_INET6, "fd00:1::2") and p[7] == 63
    return struct.unpack(">I", p[:4])[0] & 0xfffff if is_ours else None

def send(packet):
    kind = b"\x08\0" if packet[0] >> 4 == 4 else b"\x86\xdd"
    sender.send(router + own + kind + packet)

BURST = 64
receiver.settimeout(30)
def arrived():
    """Numbers of the packets that pass the router."""
    found = set()
    for first in range(0, len(packets), BURST):
        for n, (_, _, make) in list(enumerate(packets))[first:first + BURST]:
            send(make(n + 1))
        send(v4(udp(MARK), UDP, 0xffff))
        while True:
            frame, about = receiver.recvfrom(65536)
            if about[2] == socket.PACKET_OUTGOING or frame[12:14] not in (b"\x08\0", b"\x86\xdd"):
                continue
            n = number(frame[14:])
            if n == 0xffff:
                break
            found.add(n)
    return found

for at, (rules, default, *sets) in enumerate(LISTS):
    set_rules(rules, default, *sets)
    found = arrived()
    for n, (name, hidden, _) in enumerate(packets, 1):
        words = "; ".join(f"{acl} {action}" for acl, _, action in rules)
        print(f"{words}; else {default}: {name}|{int(hidden)}|{int(n in found)}")
