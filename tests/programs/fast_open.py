"""TCP Fast Open as programs use it: a server, and clients that connect several times.

    fast_open.py server PORT COUNT           answers in capitals, and says how each connection opened
    fast_open.py client HOST PORT COUNT HOW  HOW: sendto, sendmsg, connect, nonblocking
    fast_open.py alone COUNT HOW             both, over loopback
    fast_open.py refused HOW                 what a client hears when the listener has gone

Each connection's line: 1 where bytes were in its SYN (TCPI_OPT_SYN_DATA), else 0.
"""

import errno, select, socket, struct, sys, threading

TCP = socket.IPPROTO_TCP
FASTOPEN, FASTOPEN_CONNECT, MSG_FASTOPEN, SYN_DATA = 23, 30, 0x20000000, 32


def in_syn(sock):
    return 1 if sock.getsockopt(TCP, socket.TCP_INFO, 104)[5] & SYN_DATA else 0


def listener(port, host=""):
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(TCP, FASTOPEN, 16)
    assert sock.getsockopt(TCP, FASTOPEN) == 16
    sock.bind((host, port))
    sock.listen(16)
    return sock


def serve(listening, count, say=print):
    for _ in range(count):
        sock, _ = listening.accept()
        sock.settimeout(20)
        got = b""
        while not got.endswith(b"."):
            got += sock.recv(65536)
        sock.sendall(got.upper())
        say(in_syn(sock), len(got))
        assert sock.recv(1) == b""
        sock.close()


def begin(how, to, data):
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.settimeout(None)
    if how == "sendto":
        sent = sock.sendto(data, MSG_FASTOPEN, to)
    elif how == "sendmsg":
        sent = sock.sendmsg([data[:2], data[2:]], [], MSG_FASTOPEN, to)
    elif how == "nonblocking":
        sock.setblocking(False)
        try:
            sent = sock.sendto(data, MSG_FASTOPEN, to)
        except BlockingIOError as error:
            assert error.errno == errno.EINPROGRESS, error
            sent = 0
            select.select([], [sock], [], 20)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                raise OSError(error, "connect")
        sock.setblocking(True)
    else:
        sock.setsockopt(TCP, FASTOPEN_CONNECT, 1)
        assert sock.getsockopt(TCP, FASTOPEN_CONNECT) == 1
        sock.connect(to)
        sent = 0
    if sent < len(data):
        sock.sendall(data[sent:])
    return sock


def connect(how, to, count, say=print):
    for n in range(count):
        data = b"x" * (10 if n != 1 else 20000) + b"."
        sock = begin(how, to, data)
        sock.settimeout(20)
        got = b""
        while len(got) < len(data):
            part = sock.recv(65536)
            assert part, (len(got), len(data))
            got += part
        assert got == data.upper()
        say(in_syn(sock), len(got))
        sock.close()


def alone(count, how):
    listening, lines = listener(0, "127.0.0.1"), []
    server = threading.Thread(target=serve, args=(listening, count, lambda *of: lines.append(of)))
    server.start()
    ours = []
    connect(how, listening.getsockname(), count, lambda *of: ours.append(of))
    server.join(20)
    assert ours == lines, (ours, lines)
    print(*[one for one, _ in ours])


def refused(how):
    listening = listener(0, "127.0.0.1")
    to = listening.getsockname()
    server = threading.Thread(target=serve, args=(listening, 1, lambda *_: None))
    server.start()
    connect(how, to, 1, lambda *_: None)
    server.join(20)
    listening.close()
    for _ in range(2):
        try:
            sock = begin(how, to, b"x.")
            if how == "nonblocking":
                sock.recv(1)
            print("taken")
        except ConnectionRefusedError:
            print("refused")


def odd():
    """Errors of misuse, by their names."""
    def name(call):
        try:
            return call()
        except OSError as error:
            return errno.errorcode[error.errno]

    def stream():
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)

    one, two = socket.socketpair()
    listening = listener(0, "127.0.0.1")
    to = listening.getsockname()
    client = stream()
    client.connect(to)
    print(name(lambda: client.sendto(b"x", MSG_FASTOPEN, to)))
    print(name(lambda: listening.sendto(b"x", MSG_FASTOPEN, to)))
    print(name(lambda: stream().send(b"x", MSG_FASTOPEN)))
    print(name(lambda: client.setsockopt(TCP, FASTOPEN, 1)))
    print(name(lambda: client.setsockopt(TCP, FASTOPEN_CONNECT, 1)))
    print(name(lambda: stream().setsockopt(TCP, FASTOPEN_CONNECT, 2)))
    print(name(lambda: stream().setsockopt(TCP, FASTOPEN, -1)))


def saved():
    """TCP_SAVE_SYN: the headers of the client's SYN."""
    listening = listener(0, "127.0.0.1")
    listening.setsockopt(TCP, 27, 1)
    assert listening.getsockopt(TCP, 27) == 1
    client = socket.create_connection(listening.getsockname())
    server, peer = listening.accept()
    try:
        server.getsockopt(TCP, 28, 10)
    except OSError as error:
        print(errno.errorcode[error.errno])
    syn = server.getsockopt(TCP, 28, 500)
    tcp = syn[(syn[0] & 15) * 4 :]
    ports = struct.unpack("!HH", tcp[:4])
    print(syn[0] >> 4, syn[9], tcp[13], ports == (peer[1], listening.getsockname()[1]))
    print(len(syn) == (syn[0] & 15) * 4 + (tcp[12] >> 4) * 4, server.getsockopt(TCP, 28, 500))


def main(how, *rest):
    if how == "server":
        port, count = map(int, rest)
        serve(listener(port), count, lambda *of: print(*of, flush=True))
    elif how == "client":
        host, port, count, way = rest
        connect(way, (host, int(port)), int(count))
    elif how == "alone":
        alone(int(rest[0]), rest[1])
    elif how == "refused":
        refused(rest[0])
    elif how == "odd":
        odd()
    else:
        saved()


main(*sys.argv[1:])
