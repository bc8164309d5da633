"""UDP_SEGMENT: one call, many datagrams. UDP_CORK: many calls, one datagram."""
from transcript import *

UDP, SEGMENT, NO_CHECK = socket.IPPROTO_UDP, 103, 11


def received(sock):
    delivered()
    parts = []
    while mask_of(sock) & POLL["IN"]:
        parts.append(sock.recv(70000))
    return [len(part) for part in parts], b"".join(parts)


for family in socket.AF_INET, socket.AF_INET6:
    first, second = datagrams(family)
    there = second.getsockname()
    data = bytes(range(256)) * 40
    for value in -1, 0, 1, 1000, 65535, 65536:
        print(f"set {value}:", outcome(first.setsockopt, UDP, SEGMENT, value), outcome(first.getsockopt, UDP, SEGMENT))
    for size in 1000, 512, 10240, 20000:
        first.setsockopt(UDP, SEGMENT, size)
        sent = outcome(first.sendto, data, there)
        lengths, whole = received(second)
        print(f"in {size}:", sent, lengths, whole == data)
    first.setsockopt(UDP, SEGMENT, 1000)
    print("empty:", outcome(first.sendto, b"", there), received(second)[0])
    print("one byte:", outcome(first.sendto, b"x", there), received(second)[0])


    def by_message(name, value, payload):
        sent = outcome(first.sendmsg, [payload], [(UDP, SEGMENT, value)], 0, there)
        print(f"{name}:", sent, received(second)[0])


    by_message("message overrides", struct.pack("H", 300), b"y" * 700)
    by_message("message says no", struct.pack("H", 0), b"y" * 2500)
    by_message("message of four bytes", struct.pack("i", 300), b"y" * 700)
    first.setsockopt(UDP, SEGMENT, 0)
    by_message("message alone", struct.pack("H", 400), b"z" * 1000)
    by_message("too many", struct.pack("H", 1), b"z" * 1000)
    by_message("many", struct.pack("H", 10), b"z" * 640)
    by_message("one part, longer than the path over IPv6", struct.pack("H", 65507), b"z" * 65507)
    for size in 300, 1000:
        first.setsockopt(socket.SOL_SOCKET, NO_CHECK, 1)
        by_message("without checksums", struct.pack("H", size), b"z" * 700)
        first.setsockopt(socket.SOL_SOCKET, NO_CHECK, 0)
    show("unknown UDP message", first.sendmsg, [b"x"], [(UDP, 99, b"\0\0")], 0, there)
    first.connect(there)
    first.setsockopt(UDP, SEGMENT, 100)
    print("connected:", outcome(first.send, b"c" * 250), received(second)[0])
    second.close()
    show("send", first.send, b"lost" * 100)
    print("error:", settled(first, "ERR"), outcome(first.recv, 10, socket.MSG_DONTWAIT))

CORK = 1
first, second = datagrams()
first.connect(second.getsockname())
show("default", first.getsockopt, UDP, CORK)
first.setsockopt(UDP, CORK, 1)
for part in b"one ", b"two ", b"three":
    show("part", first.send, part)
print("corked:", first.getsockopt(UDP, CORK), received(second))
show("off", first.setsockopt, UDP, CORK, 0)
print("then:", first.getsockopt(UDP, CORK), received(second))
show("off again", first.setsockopt, UDP, CORK, 0)
print("nothing:", received(second))
first.setsockopt(UDP, CORK, 1)
show("too much", lambda: [first.send(b"x" * 30000) for _ in range(3)])
first.setsockopt(UDP, CORK, 0)
print("lost:", received(second)[0])
first.send(b"plain")
print(received(second))
