"""bind and listen: who may have which address, and what is refused with which errno."""
from transcript import *

REUSE = (socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def bound(host, port=0, family=socket.AF_INET, reuse=False, kind=socket.SOCK_STREAM, only=None):
    sock = socket.socket(family, kind)
    if reuse:
        sock.setsockopt(*REUSE)
    if only is not None:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
    sock.bind((host, port))
    return sock


def trial(name, *args, **kwargs):
    try:
        sock = bound(*args, **kwargs)
        print(f"{name}: ok")
        return sock
    except OSError as error:
        print(f"{name}: {errno_name(error)}")


first = bound("127.0.0.1")
port = first.getsockname()[1]
show("bind twice", first.bind, ("127.0.0.1", 0))
trial("same address, not listening", "127.0.0.1", port)
trial("same port on the wildcard", "0.0.0.0", port)
trial("same port, other loopback address", "127.0.0.2", port)
trial("reuse against one without", "127.0.0.1", port, reuse=True)
trial("UDP has ports of its own", "127.0.0.1", port, kind=socket.SOCK_DGRAM)
first.listen()
trial("same address, listening", "127.0.0.1", port)
show("listen again", first.listen, 5)
show("bind while listening", first.bind, ("127.0.0.1", 0))
first.close()
again = trial("after close", "127.0.0.1", port)
again.close()

one = bound("127.0.0.1", reuse=True)
port = one.getsockname()[1]
two = trial("reuse with reuse", "127.0.0.1", port, reuse=True)
show("the first listens", one.listen)
show("the second listens", two.listen)
trial("reuse with a listener", "127.0.0.1", port, reuse=True)
trial("reuse on the wildcard with a listener", "0.0.0.0", port, reuse=True)
one.close()
show("the second listens now", two.listen)
two.close()

any4 = bound("0.0.0.0")
port = any4.getsockname()[1]
trial("specific under wildcard", "127.0.0.1", port)
trial("dual stack over v4 wildcard", "::", port, family=socket.AF_INET6, only=0)
trial("v6 only beside v4 wildcard", "::", port, family=socket.AF_INET6, only=1)
any4.close()
any6 = bound("::", family=socket.AF_INET6, only=0)
port = any6.getsockname()[1]
trial("v4 wildcard under dual stack", "0.0.0.0", port)
trial("v4 loopback under dual stack", "127.0.0.1", port)
trial("mapped loopback under dual stack", "::ffff:127.0.0.1", port, family=socket.AF_INET6)
any6.close()
mapped = bound("::ffff:127.0.0.1", family=socket.AF_INET6, only=0)
port = mapped.getsockname()[1]
trial("v4 loopback under mapped", "127.0.0.1", port)
trial("v6 loopback beside mapped", "::1", port, family=socket.AF_INET6)
mapped.close()
trial("mapped address on a v6-only socket", "::ffff:127.0.0.1", family=socket.AF_INET6, only=1)

trial("an address of somebody else", "192.0.2.1")
trial("an address of somebody else, v6", "2001:db8::1", family=socket.AF_INET6)
trial("an address of somebody else, UDP", "192.0.2.1", kind=socket.SOCK_DGRAM)
trial("a multicast group, UDP", "239.1.2.3", kind=socket.SOCK_DGRAM)

udp = bound("127.0.0.1", kind=socket.SOCK_DGRAM)
port = udp.getsockname()[1]
trial("UDP same address", "127.0.0.1", port, kind=socket.SOCK_DGRAM)
show("UDP bind twice", udp.bind, ("127.0.0.1", 0))
udp.close()
udp = bound("127.0.0.1", kind=socket.SOCK_DGRAM, reuse=True)
port = udp.getsockname()[1]
trial("UDP reuse with reuse", "127.0.0.1", port, kind=socket.SOCK_DGRAM, reuse=True)

unbound = socket.socket()
show("name of an unbound socket", unbound.getsockname)
show("listen unbound", unbound.listen)
print("then it has a port:", unbound.getsockname()[0], unbound.getsockname()[1] > 0)
show("listen UDP", socket.socket(socket.AF_INET, socket.SOCK_DGRAM).listen)
client, server = pair()
show("listen connected", client.listen)
show("bind connected", client.bind, ("127.0.0.1", 0))
port = client.getsockname()[1]
trial("the port of a connection", "127.0.0.1", port)
