"""What poll, select and epoll say in every state of a connection, for every way to shut it down."""
import itertools
from transcript import *

BITS = {1: "IN", 2: "PRI", 4: "OUT", 8: "ERR", 16: "HUP", 0x40: "RDNORM", 0x80: "RDBAND", 0x100: "WRNORM", 0x200: "WRBAND",
        0x400: "MSG", 0x2000: "RDHUP"}


def words(mask):
    return "|".join(name for bit, name in BITS.items() if mask & bit) or "-"


def all_of(sock):
    """By poll, epoll, and select."""
    poll = select.poll()
    poll.register(sock, 0x27ff)
    polled = poll.poll(0)
    with select.epoll() as epoll:
        epoll.register(sock, 0x27ff)
        seen = epoll.poll(0)
    sets = select.select([sock], [sock], [sock], 0)
    poll = select.poll()
    poll.register(sock, 0)
    unasked = poll.poll(0)
    return (f"poll {words(polled[0][1]) if polled else '-'} epoll {words(seen[0][1]) if seen else '-'} "
            f"select {''.join(letter for letter, ready in zip('rwx', sets) if ready)} unasked "
            f"{words(unasked[0][1]) if unasked else '-'}")


def state(sock):
    """As Linux numbers it; whether a FIN was acknowledged already is a matter of time."""
    return {4: "4 or 5", 5: "4 or 5"}.get(number := sock.getsockopt(socket.IPPROTO_TCP, 11, 1)[0], number)


HOW = {"RD": socket.SHUT_RD, "WR": socket.SHUT_WR, "RDWR": socket.SHUT_RDWR}
steps = [(who, how) for who in "ab" for how in ("RD", "WR", "RDWR", "close")]
for first, second in itertools.product(steps, [None] + steps):
    if second and second[0] == first[0] and first[1] == "close" or first == second:
        continue
    for unread in (False, True):
        a, b = pair()
        ends = {"a": a, "b": b}
        if unread:
            b.send(b"unread")
            settled(a, "IN")
        results = []
        for who, how in filter(None, (first, second)):
            sock = ends[who]
            results.append(outcome(sock.close) if how == "close" else outcome(sock.shutdown, HOW[how]))
            delivered()
        print(first, second, "unread" if unread else "", results)
        open_ends = {name: end for name, end in ends.items() if end.fileno() >= 0}
        for name, end in open_ends.items():
            print("   ", name, all_of(end))
            print("   ", "error", end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "peer",
                  outcome(lambda: end.getpeername() and True), "state", state(end))
        for name, end in open_ends.items():
            print("   ", name, "recv", *(outcome(end.recv, 10, socket.MSG_DONTWAIT) for _ in range(2)))
        for end in open_ends.values():
            end.close()

print("fresh", all_of(socket.socket()))
bound = socket.socket()
bound.bind(("127.0.0.1", 0))
print("bound", all_of(bound))
print("listener", all_of(listener()))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print("udp", all_of(udp))
udp.connect(("127.0.0.1", 9))
print("udp connected", all_of(udp))
for how in "RD", "WR", "RDWR":
    show(how, udp.shutdown, HOW[how])
    print("udp", how, all_of(udp), outcome(udp.recv, 1, socket.MSG_DONTWAIT))
show("send after it", udp.send, b"x")
show("recv after it, which may wait", udp.recv, 1)
