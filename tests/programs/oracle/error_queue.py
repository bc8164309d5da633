"""IP_RECVERR: errors that come back for datagrams, in the error queue and from the calls."""
from transcript import *

ERRQUEUE, DONTWAIT, PEEK = socket.MSG_ERRQUEUE, socket.MSG_DONTWAIT, socket.MSG_PEEK
RECVERR = {socket.AF_INET: (socket.IPPROTO_IP, 11), socket.AF_INET6: (socket.IPPROTO_IPV6, 25)}


def nobody(family):
    gone = socket.socket(family, socket.SOCK_DGRAM)
    gone.bind((loopback(family), 0))
    name = gone.getsockname()
    gone.close()
    return name


def report(sock, name, size=100, control=512, flags=0):
    """What recvmsg gives from the error queue."""
    try:
        data, ancillary, flags, address = sock.recvmsg(size, control, ERRQUEUE | flags)
    except OSError as error:
        return print(f"{name}:", errno_name(error))
    flags = "|".join(n for n in ("MSG_ERRQUEUE", "MSG_TRUNC", "MSG_CTRUNC") if flags & getattr(socket, n))
    print(f"{name}:", data[:8], len(data), flags, "from the one it was sent to:", address == there)
    for level, kind, value in ancillary:
        number, origin, type_, code, pad, info, more = struct.unpack_from("IBBBBII", value)
        offender, = struct.unpack_from("H", value, 16)
        if offender == socket.AF_INET:
            offender = (offender, socket.inet_ntoa(value[20:24]))
        elif offender == socket.AF_INET6:
            offender = (offender, socket.inet_ntop(socket.AF_INET6, value[24:40]))
        print("  ", level, kind, len(value), errno.errorcode[number], origin, type_, code, pad, info, more, offender)


for family in socket.AF_INET, socket.AF_INET6:
    print("family", family)
    there = nobody(family)
    level, name = RECVERR[family]
    # Not connected: nothing without the option, everything with it.
    sock = socket.socket(family, socket.SOCK_DGRAM)
    report(sock, "empty")
    sock.sendto(b"unheard", there)
    delivered()
    print("without the option:", events(mask_of(sock)))
    report(sock, "still empty")
    sock.setsockopt(level, name, 1)
    sock.sendto(b"heard", there)
    print("with it:", settled(sock, "ERR"))
    report(sock, "peeked", flags=PEEK)
    report(sock, "queue")
    print("SO_ERROR is left:", sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), events(mask_of(sock)))
    report(sock, "empty again")

    sock.sendto(b"for recv", there)
    settled(sock, "ERR")
    show("recv", sock.recv, 10, DONTWAIT)
    show("and once more", sock.recv, 10, DONTWAIT)
    print("mask:", events(mask_of(sock)))
    report(sock, "its report stays")
    print("mask:", events(mask_of(sock)))

    sock.sendto(b"first", there)
    settled(sock, "ERR")
    show("send", sock.sendto, b"second", there)
    show("send again", sock.sendto, b"third", there)
    delivered()
    for n in range(3):
        report(sock, f"report {n}")
        show("error after it", sock.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)

    sock.sendto(b"a rather long datagram", there)
    settled(sock, "ERR")
    report(sock, "cut", size=5, control=8)
    sock.sendto(b"", there)
    settled(sock, "ERR")
    report(sock, "of nothing")

    # Connected.
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setsockopt(level, name, 1)
    sock.connect(there)
    sock.send(b"connected")
    settled(sock, "ERR")
    show("recv", sock.recv, 10, DONTWAIT)
    report(sock, "queue")
    sock.send(b"connected")
    settled(sock, "ERR")
    sock.setsockopt(level, name, 0)
    print("switched off:", events(mask_of(sock)))
    report(sock, "emptied")

    # A datagram waits beside the error.
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setsockopt(level, name, 1)
    sock.bind((loopback(family), 0))
    friend = socket.socket(family, socket.SOCK_DGRAM)
    friend.sendto(b"hello", sock.getsockname())
    settled(sock, "IN")
    sock.sendto(b"lost", there)
    print("both:", settled(sock, "ERR|IN"))
    show("recv", sock.recv, 10)
    show("recv", sock.recv, 10)
    report(sock, "queue")

tcp, peer = pair()
report(tcp, "of TCP")
