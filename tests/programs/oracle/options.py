"""Socket options: defaults, what is read back, and what is refused."""
from transcript import *

SOL, TCP, IP, V6 = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.IPPROTO_IPV6
SO_PROTOCOL, SO_DOMAIN, TCP_USER_TIMEOUT = 38, 39, 18


def both(name, sock, level, option, *values):
    """The default, then each value as it is read back."""
    line = [str(outcome(sock.getsockopt, level, option))]
    for value in values:
        result = outcome(sock.setsockopt, level, option, value)
        line.append(f"{value} -> {result or outcome(sock.getsockopt, level, option)}")
    print(f"{name}:", ", ".join(line))


tcp, udp, tcp6 = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET6)
for name, sock in ("tcp", tcp), ("udp", udp), ("tcp6", tcp6):
    print(name, *(sock.getsockopt(SOL, o) for o in (socket.SO_TYPE, SO_DOMAIN, SO_PROTOCOL, socket.SO_ACCEPTCONN,
                                                     socket.SO_ERROR)))
    both("REUSEADDR", sock, SOL, socket.SO_REUSEADDR, 1, 0, 7)
    both("REUSEPORT", sock, SOL, socket.SO_REUSEPORT, 1, 0)
    both("KEEPALIVE", sock, SOL, socket.SO_KEEPALIVE, 1, 0)
    both("BROADCAST", sock, SOL, socket.SO_BROADCAST, 1, 0)
    both("OOBINLINE", sock, SOL, socket.SO_OOBINLINE, 1, 0)
    both("RCVLOWAT", sock, SOL, socket.SO_RCVLOWAT)
    both("TYPE is not set", sock, SOL, socket.SO_TYPE, 1)
    both("ERROR is not set", sock, SOL, socket.SO_ERROR, 1)
    both("ACCEPTCONN is not set", sock, SOL, socket.SO_ACCEPTCONN, 1)
    show("unknown option", sock.setsockopt, SOL, 9999, 1)
    show("unknown option", sock.getsockopt, SOL, 9999)
    show("unknown level", sock.setsockopt, 9999, 1, 1)
    show("unknown level", sock.getsockopt, 9999, 1)
    for option, label in (socket.SO_RCVBUF, "RCVBUF"), (socket.SO_SNDBUF, "SNDBUF"):
        show(f"{label} 50000", sock.setsockopt, SOL, option, 50000)
        print(f"{label} is doubled:", sock.getsockopt(SOL, option))
        show(f"{label} 0", sock.setsockopt, SOL, option, 0)
        print(f"{label} has a floor:", 1000 < sock.getsockopt(SOL, option) < 8000)

both("NODELAY", tcp, TCP, socket.TCP_NODELAY, 1, 0, 5)
both("CORK", tcp, TCP, socket.TCP_CORK, 1, 0)
both("KEEPIDLE", tcp, TCP, socket.TCP_KEEPIDLE, 30, 0, 32768, 32767)
both("KEEPINTVL", tcp, TCP, socket.TCP_KEEPINTVL, 5, 0, 32768)
both("KEEPCNT", tcp, TCP, socket.TCP_KEEPCNT, 3, 0, 128, 127)
both("USER_TIMEOUT", tcp, TCP, TCP_USER_TIMEOUT, 12345, 0, -1)
show("TCP unknown", tcp.setsockopt, TCP, 999, 1)
show("TCP unknown", tcp.getsockopt, TCP, 999)
show("TCP level on UDP", udp.setsockopt, TCP, socket.TCP_NODELAY, 1)
show("short value", tcp.setsockopt, TCP, socket.TCP_NODELAY, b"\1")
show("short value", tcp.setsockopt, SOL, socket.SO_REUSEADDR, b"\1\0")
print("truncated get:", tcp.getsockopt(SOL, socket.SO_TYPE, 2), tcp.getsockopt(SOL, socket.SO_TYPE, 100))


def algorithm(sock):
    return sock.getsockopt(TCP, socket.TCP_CONGESTION, 16).split(b"\0")[0]


# Root may choose any that is there, others the allowed ones.
with open("/proc/sys/net/ipv4/tcp_allowed_congestion_control", "rb") as file:
    allowed = file.read().split() + ([b"cubic"] if os.geteuid() == 0 else [])
for name in [name for name in (b"reno", b"cubic") if name in allowed] + [b"no-such", b""]:
    print("congestion", name, outcome(tcp.setsockopt, TCP, socket.TCP_CONGESTION, name), algorithm(tcp))

both("TTL", udp, IP, socket.IP_TTL, 7, 0, 256, -1)
both("TOS", udp, IP, socket.IP_TOS, 0x10, 0xb8, 0)
both("TOS of TCP", tcp, IP, socket.IP_TOS, 0x10, 0)
both("MULTICAST_TTL", udp, IP, socket.IP_MULTICAST_TTL, 5, 256)
both("MULTICAST_LOOP", udp, IP, socket.IP_MULTICAST_LOOP, 0, 1)
both("PKTINFO", udp, IP, 8, 1, 0)
both("RECVTTL", udp, IP, 12, 1, 0)
show("IP unknown", udp.getsockopt, IP, 999)
both("UNICAST_HOPS", tcp6, V6, socket.IPV6_UNICAST_HOPS, 9, 256)
both("TCLASS", tcp6, V6, socket.IPV6_TCLASS, 0x20, 0)
both("RECVPKTINFO", tcp6, V6, socket.IPV6_RECVPKTINFO, 1, 0)
both("V6ONLY", tcp6, V6, socket.IPV6_V6ONLY, 1, 0)

# Of a listener, inherited by what it accepts.
server = listener()
server.setsockopt(SOL, socket.SO_KEEPALIVE, 1)
server.setsockopt(TCP, socket.TCP_KEEPIDLE, 77)
server.setsockopt(TCP, socket.TCP_NODELAY, 1)
server.setsockopt(TCP, socket.TCP_CONGESTION, b"reno")
server.setsockopt(SOL, socket.SO_RCVBUF, 60000)
show("ACCEPTCONN of a listener", server.getsockopt, SOL, socket.SO_ACCEPTCONN)
client = socket.socket()
client.connect(server.getsockname())
accepted, _ = server.accept()
print("inherited:", *(accepted.getsockopt(*o) for o in ((SOL, socket.SO_KEEPALIVE), (TCP, socket.TCP_KEEPIDLE),
      (TCP, socket.TCP_NODELAY), (SOL, socket.SO_RCVBUF), (SOL, socket.SO_ACCEPTCONN))), algorithm(accepted))
print("the client's are its own:", client.getsockopt(SOL, socket.SO_KEEPALIVE), client.getsockopt(TCP, socket.TCP_NODELAY))
info = client.getsockopt(TCP, socket.TCP_INFO, 256)
print("TCP_INFO: established", info[0] == 1, "length", len(info) > 100)
print("MAXSEG plausible:", 500 < client.getsockopt(TCP, socket.TCP_MAXSEG) < 65536)
print("listener TCP_INFO state:", server.getsockopt(TCP, socket.TCP_INFO, 8)[0])
