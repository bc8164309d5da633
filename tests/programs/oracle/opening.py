"""Connects whose SYN waits for the first bytes: TCP_FASTOPEN_CONNECT with a cookie, MSG_FASTOPEN."""
import fcntl
import termios
from transcript import *

TCP = socket.IPPROTO_TCP
FASTOPEN, FASTOPEN_CONNECT, MSG_FASTOPEN = 23, 30, 0x20000000
ESTABLISHED = 1


def server():
    sock = socket.socket()
    sock.setsockopt(TCP, FASTOPEN, 16)
    sock.bind(("127.0.0.1", 0))
    sock.listen(16)
    return sock


def stream(deferred=True):
    sock = socket.socket()
    sock.setsockopt(TCP, FASTOPEN_CONNECT, int(deferred))
    return sock


def opening(to, blocking=False):
    sock = stream()
    sock.setblocking(blocking)
    show("connect", sock.connect, to)
    return sock


def state(sock):
    return sock.getsockopt(TCP, socket.TCP_INFO, 1)[0]


def look(what, sock):
    ip, port = sock.getsockname()
    peer = outcome(sock.getpeername)
    peer = peer if isinstance(peer, str) else "peer"
    print(f"{what}: state {state(sock)}, {ip}, {port != 0}, {peer}, {events(mask_of(sock))}")


def accepted(listening, wait=30):
    """What came with a connection; the connection stays."""
    listening.settimeout(wait)
    try:
        sock, _ = listening.accept()
    except TimeoutError:
        return print("accepted: none")
    kept.append(sock)
    print("accepted")
    return sock


def over(sock):
    """The handshake is."""
    return eventually(lambda: state(sock) == ESTABLISHED)


def error(sock):
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return errno.errorcode.get(code, code)


def disconnect(sock):
    return call("connect", sock.fileno(), struct.pack("=H14x", 0), 16)


kept = []
there = server()
to = there.getsockname()
# Each shard of a stack asks for a cookie of its own.
in_a_row = 0
while in_a_row < 64:
    first = stream()
    first.connect(to)
    in_a_row = 0 if state(first) == ESTABLISHED else in_a_row + 1
    first.close()
    if in_a_row == 0:
        there.accept()[0].close()

print("- calls before the SYN")
sock = opening(to)
look("opening", sock)
show("connect again", sock.connect, to)
show("connect elsewhere", sock.connect, ("127.0.0.1", 9))
show("recv", sock.recv, 1)
show("peek", sock.recv, 1, socket.MSG_PEEK)
show("recv urgent", sock.recv, 1, socket.MSG_OOB)
show("listen", sock.listen, 1)
show("bind", sock.bind, ("127.0.0.1", 0))
show("no more", sock.setsockopt, TCP, FASTOPEN_CONNECT, 0)
for what in (termios.FIONREAD, termios.TIOCOUTQ):
    show("bytes", fcntl.ioctl, sock, what, bytes(4))
show("writev of none", os.writev, sock.fileno(), [])
accepted(there, 0.2)
look("still opening", sock)

print("- writes without bytes")
for blocking in (True, False):
    for name in ("write", "send", "sendmsg", "sendto", "send with MSG_FASTOPEN"):
        if name == "sendto":
            sock = stream(False)
            sock.setblocking(blocking)
        else:
            sock = opening(to, blocking)
        show(name, *{
            "write": (os.write, sock.fileno(), b""),
            "send": (sock.send, b""),
            "sendmsg": (sock.sendmsg, []),
            "sendto": (sock.sendto, b"", MSG_FASTOPEN, to),
            "send with MSG_FASTOPEN": (sock.send, b"", MSG_FASTOPEN),
        }[name])
        accepted(there)
        over(sock)
        look("written", sock)
        for _ in range(2):
            show("connect", sock.connect, to)

print("- writes with bytes")
for blocking in (True, False):
    for again in (0, MSG_FASTOPEN):
        sock = opening(to, blocking)
        show("send", sock.send, b"one")
        other = accepted(there)
        over(sock)
        show("again", sock.send, b"two", again)
        show("to", sock.sendto, b"two", again, to)
        look("sent", sock)
        sock.shutdown(socket.SHUT_WR)
        print(receive_all(other))

print("- given up")
for how in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR, None):
    sock = opening(to)
    if how is None:
        show("disconnect", disconnect, sock)
    else:
        show("shutdown", sock.shutdown, how)
    look("given up", sock)
    accepted(there, 0.2)
    show("send", sock.send, b"x", socket.MSG_NOSIGNAL)
    show("recv", sock.recv, 1)
    print("error:", error(sock))
    sock.setblocking(True)
    show("connect", sock.connect, to)
    look("again", sock)
    show("send", sock.send, b"x")
    show("recv", accepted(there).recv, 9)
    look("sent", sock)

print("- refused")
for name in ("write", "sendto"):
    for data in (b"bytes", b""):
        for blocking in (True, False):
            gone = server()
            nowhere = gone.getsockname()
            sock = opening(nowhere, blocking) if name == "write" else stream(False)
            sock.setblocking(blocking)
            gone.close()
            show("gone", socket.socket().connect, nowhere)
            if name == "write":
                show("write", os.write, sock.fileno(), data)
            else:
                show("sendto", sock.sendto, data, MSG_FASTOPEN, nowhere)
            if not blocking:
                print("told:", settled(sock, "ERR"))
            look("refused", sock)
            show("recv", sock.recv, 1, socket.MSG_DONTWAIT)
            print("error:", error(sock))
            show("send", sock.send, b"x", socket.MSG_NOSIGNAL)
            sock.setblocking(True)
            show("connect", sock.connect, to)
            if state(sock) != 7:
                show("send", sock.send, b"later")
                show("recv", accepted(there).recv, 9)
            look("elsewhere", sock)

print("- other ways to write")
sock = opening(to, True)
inlet, outlet = os.pipe()
os.write(outlet, b"piped")
show("splice", os.splice, inlet, sock.fileno(), 5)
show("recv", accepted(there).recv, 9)
sock = opening(to, True)
with open(__file__, "rb") as file:
    show("sendfile", os.sendfile, sock.fileno(), file.fileno(), 0, 3)
show("recv", accepted(there).recv, 9)
sock = opening(to, True)
if os.fork() == 0:
    os._exit(os.write(sock.fileno(), b"child"))
print("child:", os.waitstatus_to_exitcode(os.wait()[1]))
show("recv", accepted(there).recv, 9)
look("parent", sock)
sock = opening(to)
sock.close()
accepted(there, 0.2)
