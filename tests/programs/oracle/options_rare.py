"""Options that few programs use. One that is not implemented must say so as Linux would."""
from transcript import *

SOL, TCP, IP, V6 = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.IPPROTO_IPV6
tcp, udp, tcp6 = socket.socket(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET6)


def kept(name, sock, level, option, value):
    """Either refused, or read back: never accepted and forgotten."""
    try:
        sock.setsockopt(level, option, value)
    except OSError as error:
        return print(f"{name}: kept or refused", error.errno in (errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EPERM))
    print(f"{name}: kept or refused", sock.getsockopt(level, option) == value)


kept("SYNCNT", tcp, TCP, socket.TCP_SYNCNT, 3)
kept("LINGER2", tcp, TCP, socket.TCP_LINGER2, 30)
kept("QUICKACK", tcp, TCP, socket.TCP_QUICKACK, 1)
kept("WINDOW_CLAMP", tcp, TCP, socket.TCP_WINDOW_CLAMP, 40000)
kept("NOTSENT_LOWAT", tcp, TCP, socket.TCP_NOTSENT_LOWAT, 16384)
kept("RCVLOWAT", tcp, SOL, socket.SO_RCVLOWAT, 100)
kept("DONTROUTE", tcp, SOL, socket.SO_DONTROUTE, 1)
kept("PRIORITY", tcp, SOL, socket.SO_PRIORITY, 3)
kept("MARK", tcp, SOL, socket.SO_MARK, 5)
kept("BUSY_POLL", tcp, SOL, 46, 50)
kept("FREEBIND", tcp, IP, 15, 1)
kept("TRANSPARENT", tcp, IP, 19, 1)
kept("MTU_DISCOVER", udp, IP, 10, 2)
kept("RECVERR", udp, IP, 11, 1)
kept("RECVTOS", udp, IP, 13, 1)
kept("TIMESTAMP", udp, SOL, 29, 1)
kept("V6 RECVHOPLIMIT", tcp6, V6, socket.IPV6_RECVHOPLIMIT, 1)
show("BROADCAST of TCP", tcp.getsockopt, SOL, socket.SO_BROADCAST)
show("BINDTODEVICE of no device", tcp.setsockopt, SOL, socket.SO_BINDTODEVICE, b"no-such-device\0")
show("IP membership that is none", udp.setsockopt, IP, socket.IP_ADD_MEMBERSHIP, b"\x0a\1\2\3" + b"\x7f\0\0\1")
show("leave what was not joined", udp.setsockopt, IP, socket.IP_DROP_MEMBERSHIP, b"\xef\1\2\3" + b"\x7f\0\0\1")
