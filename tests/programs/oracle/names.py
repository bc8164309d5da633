"""getsockname and getpeername: IPv4, IPv6, mapped addresses, dual stack and IPV6_V6ONLY."""
from transcript import *

V4, V6 = socket.AF_INET, socket.AF_INET6


def shape(address):
    return (address[0], "port" if address[1] else 0) + tuple(address[2:])


def meet(name, server_family, server_host, client_family, client_host, only=0):
    server = socket.socket(server_family)
    if server_family == V6:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
    server.bind((server_host, 0))
    server.listen()
    client = socket.socket(client_family)
    print(f"{name}:", end=" ")
    try:
        client.connect((client_host, server.getsockname()[1]))
    except OSError as error:
        return print(errno_name(error))
    accepted, peer = server.accept()
    print("listener", shape(server.getsockname()), "client", shape(client.getsockname()), shape(client.getpeername()),
          "accepted", shape(accepted.getsockname()), shape(accepted.getpeername()),
          "ports", client.getsockname()[1] == accepted.getpeername()[1] == peer[1],
          client.getpeername()[1] == accepted.getsockname()[1] == server.getsockname()[1],
          "family", accepted.family.name, accepted.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == server_family)


meet("v4", V4, "127.0.0.1", V4, "127.0.0.1")
meet("v4 wildcard", V4, "0.0.0.0", V4, "127.0.0.1")
meet("v4 other", V4, "0.0.0.0", V4, "127.1.2.3")
meet("v6", V6, "::1", V6, "::1")
meet("v6 wildcard", V6, "::", V6, "::1")
meet("dual, v4 client", V6, "::", V4, "127.0.0.1")
meet("dual, mapped client", V6, "::", V6, "::ffff:127.0.0.1")
meet("mapped server", V6, "::ffff:127.0.0.1", V4, "127.0.0.1")
meet("v4 server, mapped client", V4, "127.0.0.1", V6, "::ffff:127.0.0.1")
meet("v6 only, v4 client", V6, "::", V4, "127.0.0.1", only=1)
meet("v6 only, v6 client", V6, "::", V6, "::1", only=1)

sock = socket.socket(V6)
show("V6ONLY by default", sock.getsockopt, socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
sock.bind(("::1", 0))
show("V6ONLY after bind", sock.setsockopt, socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)

for family, host in (V4, "127.0.0.1"), (V6, "::1"), (V6, "::ffff:127.0.0.1"):
    udp = socket.socket(family, socket.SOCK_DGRAM)
    print("udp fresh:", shape(udp.getsockname()))
    udp.connect((host, 9))
    print("udp connected:", shape(udp.getsockname()), udp.getpeername())
    udp.close()
    udp = socket.socket(family, socket.SOCK_DGRAM)
    udp.sendto(b"", (host, 9))
    print("udp after sendto:", shape(udp.getsockname()))

dual = socket.socket(V6, socket.SOCK_DGRAM)
dual.bind(("::", 0))
four = socket.socket(V4, socket.SOCK_DGRAM)
four.sendto(b"hello", ("127.0.0.1", dual.getsockname()[1]))
data, sender = dual.recvfrom(10)
print("udp dual receives:", data, shape(sender))
dual.sendto(b"answer", sender)
data, sender = four.recvfrom(10)
print("udp dual answers:", data, shape(sender))
