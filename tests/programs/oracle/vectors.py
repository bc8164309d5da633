"""readv, writev, sendmsg, recvmsg with several buffers."""
from transcript import *

client, server = pair()
show("writev", os.writev, client.fileno(), [b"one ", b"", b"two ", b"three"])
settled(server, "IN")
parts = [bytearray(b"." * n) for n in (2, 0, 5, 20)]
show("readv", os.readv, server.fileno(), parts)
print("parts:", [bytes(p) for p in parts])
show("writev of nothing", os.writev, client.fileno(), [])
show("writev of empty ones", os.writev, client.fileno(), [b"", b""])
show("sendmsg", client.sendmsg, [b"a" * 3, bytearray(b"b" * 2), memoryview(b"c")])
settled(server, "IN")
parts = [bytearray(b"." * n) for n in (1, 2, 10)]
show("recvmsg_into", server.recvmsg_into, parts)
print("parts:", [bytes(p) for p in parts])
show("sendmsg of nothing", client.sendmsg, [])
show("too many buffers, sendmsg", lambda: client.sendmsg([b"x"] * 1025))
show("too many buffers, writev", os.writev, client.fileno(), [b"x"] * 1025)
show("most buffers, writev", os.writev, client.fileno(), [b"xy"] * 1024)
print("they arrive:", receive_exactly(server, 2048) == b"xy" * 1024)
show("peek", lambda: (client.send(b"look"), settled(server, "IN"), server.recvmsg(10, 0, socket.MSG_PEEK))[2])
show("recvmsg", server.recvmsg, 10)
show("ancillary data of another level is ignored or refused",
     lambda: client.sendmsg([b"x"], [(socket.SOL_SOCKET, 0x7777, b"\0" * 4)]))
client, server = pair()
import threading
big = [bytes([i]) * 300_000 for i in range(8)]
thread = threading.Thread(target=lambda: [client.sendall(b"".join(big)), client.close()])
thread.start()
got = bytearray()
while True:
    parts = [bytearray(1000), bytearray(7), bytearray(50_000)]
    n = server.recvmsg_into(parts)[0]
    if not n:
        break
    got += b"".join(parts)[:n]
thread.join()
print("a big one:", got == b"".join(big))

first, second = datagrams()
show("udp sendmsg", first.sendmsg, [b"ab", b"", b"cd"], [], 0, second.getsockname())
parts = [bytearray(3), bytearray(10)]
n, ancillary, flags, sender = second.recvmsg_into(parts)
print("udp recvmsg:", n, ancillary, flags, sender == first.getsockname(), [bytes(p[:n]) for p in parts])
first.sendto(b"longer than that", second.getsockname())
settled(second, "IN")
parts = [bytearray(2), bytearray(3)]
n, ancillary, flags, sender = second.recvmsg_into(parts)
print("udp cut off:", n, flags == socket.MSG_TRUNC, b"".join(parts))
first.connect(second.getsockname())
show("udp writev", os.writev, first.fileno(), [b"1", b"2", b"3"])
show("udp readv", lambda: (settled(second, "IN"), os.readv(second.fileno(), [bytearray(1), bytearray(5)]))[1])
