"""UDP: connected and not, peeking, truncation, empty datagrams, errors, addresses of arrival."""
from transcript import *

TRUNC, PEEK = socket.MSG_TRUNC, socket.MSG_PEEK
for family in socket.AF_INET, socket.AF_INET6:
    host = loopback(family)
    first, second = datagrams(family)
    there, here = second.getsockname(), first.getsockname()
    show("send", first.sendto, b"hello", there)
    data, sender = second.recvfrom(100)
    print("received:", data, sender == here)
    for payload in b"", b"abcdef", b"second":
        first.sendto(payload, there)
    print("empty:", settled(second, "IN"), second.recvfrom(10) == (b"", here))
    print("peek:", second.recv(3, PEEK), second.recv(100, PEEK))
    print("cut off:", second.recv(3), "the rest is gone:", second.recv(100))
    first.sendto(b"x" * 500, there)
    settled(second, "IN")
    buffer = bytearray(10)
    print("length with MSG_TRUNC and peek:", second.recv_into(buffer, 10, TRUNC | PEEK))
    data, ancillary, flags, sender = second.recvmsg(10, 0, PEEK)
    print("flag:", len(data), flags == TRUNC)
    print("length with MSG_TRUNC:", second.recv_into(buffer, 10, TRUNC))
    show("nothing left", second.recv, 10, socket.MSG_DONTWAIT)
    show("largest", first.sendto, b"y" * 65507, there)
    print("it arrives:", len(second.recv(70000)))
    show("too large", first.sendto, b"y" * 65536, there)
    show("waitall means nothing", lambda: (first.sendto(b"abc", there), second.recv(10, socket.MSG_WAITALL))[1])

    first.connect(there)
    stranger, _ = datagrams(family)
    stranger.sendto(b"not you", here)
    second.sendto(b"you", here)
    print("connected hears its peer only:", first.recv(100), outcome(first.recv, 1, socket.MSG_DONTWAIT))
    show("send", first.send, b"plain")
    show("sendto another", first.sendto, b"other", stranger.getsockname())
    print("both arrive:", second.recv(10), stranger.recv(10))
    print("peer:", first.getpeername() == there)
    first.connect(stranger.getsockname())
    print("connected elsewhere:", first.getpeername() == stranger.getsockname(), first.getsockname() == here)

    # connect to AF_UNSPEC dissolves.
    show("dissolve", call, "connect", first.fileno(), struct.pack("H14x", socket.AF_UNSPEC), 16)
    show("peer after it", first.getpeername)
    show("send after it", first.send, b"x")

    # A port that nobody has.
    gone = socket.socket(family, socket.SOCK_DGRAM)
    gone.bind((host, 0))
    nobody = gone.getsockname()
    gone.close()
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.connect(nobody)
    show("send to nobody", sock.send, b"x")
    print("mask:", settled(sock, "ERR"))
    show("recv", sock.recv, 1)
    show("recv after it", sock.recv, 1, socket.MSG_DONTWAIT)
    sock.send(b"x")
    settled(sock, "ERR")
    show("send", sock.send, b"x")
    sock.send(b"x")
    settled(sock, "ERR")
    show("SO_ERROR", sock.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)
    print("mask after it:", events(mask_of(sock)))
    sock.settimeout(30)
    sock.send(b"x")
    show("blocked recv", sock.recv, 1)
    free = socket.socket(family, socket.SOCK_DGRAM)
    show("not connected", free.sendto, b"x", nobody)
    time.sleep(0.1)
    print("hears nothing:", events(mask_of(free)), outcome(free.recv, 1, socket.MSG_DONTWAIT))

# To which address a datagram came.
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", 0))
server.setsockopt(socket.IPPROTO_IP, 8, 1)
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for host in "127.0.0.1", "127.5.6.7":
    client.sendto(b"where", (host, server.getsockname()[1]))
    data, ancillary, flags, sender = server.recvmsg(100, 100)
    for level, kind, value in ancillary:
        index, spec, destination = struct.unpack("i4s4s", value)
        print("arrived at:", level == socket.IPPROTO_IP, kind, index > 0, socket.inet_ntoa(spec), socket.inet_ntoa(destination))
print("cut off control data:", server.recvmsg(100, 4)[2] if client.sendto(b"x", ("127.0.0.1", server.getsockname()[1])) else None)
server.sendmsg([b"from"], [(socket.IPPROTO_IP, 8, struct.pack("i4s4s", 0, socket.inet_aton("127.5.6.7"), b"\0" * 4))], 0,
               ("127.0.0.1", client.getsockname()[1]))
print("sent from:", client.recvfrom(10)[1][0])
server = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
server.bind(("::", 0))
server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
client = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
client.sendto(b"where", ("::1", server.getsockname()[1]))
for level, kind, value in server.recvmsg(100, 100)[1]:
    print("arrived at:", level == socket.IPPROTO_IPV6, kind, socket.inet_ntop(socket.AF_INET6, value[:16]))

# Broadcast needs to be allowed.
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
show("broadcast", client.sendto, b"x", ("127.255.255.255", 9))
show("broadcast connect", client.connect, ("127.255.255.255", 9))
