"""A datagram has the TTL and class that its socket had when it was sent, however many are under way."""
from transcript import *

for family, level, names in [
    (socket.AF_INET, socket.IPPROTO_IP, (socket.IP_TTL, socket.IP_TOS, 12, 13)),
    (socket.AF_INET6, socket.IPPROTO_IPV6, (16, 67, 51, 66)),  # UNICAST_HOPS, TCLASS and their RECV.
]:
    ttl, tos, recv_ttl, recv_tos = names
    server = socket.socket(family, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
    server.settimeout(30)
    for name in (recv_ttl, recv_tos):
        server.setsockopt(level, name, 1)
    for connected in (True, False):
        client = socket.socket(family, socket.SOCK_DGRAM)
        if connected:
            client.connect(server.getsockname())
        for n in range(40):
            client.setsockopt(level, ttl, n + 1)
            client.setsockopt(level, tos, n * 4)
            client.send(b"x") if connected else client.sendto(b"x", server.getsockname())
        client.setsockopt(level, ttl, 99)
        client.setsockopt(level, tos, 0)
        seen = []
        for _ in range(40):
            _, control, _, _ = server.recvmsg(10, 200)
            seen.append(tuple(data[0] for _, _, data in sorted(control)))
        print(connected, seen)
