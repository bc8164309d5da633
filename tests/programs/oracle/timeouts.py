"""SO_RCVTIMEO, SO_SNDTIMEO and Python's own timeouts."""
from transcript import *

RCV, SND = socket.SO_RCVTIMEO, socket.SO_SNDTIMEO


def timed(name, action, *args):
    start = time.monotonic()
    value = outcome(action, *args)
    took = time.monotonic() - start
    print(f"{name}: {value if isinstance(value, str) else repr(value)}, waited {0.25 < took and in_time(took, 4)}")


def timeval(sock, option):
    return struct.unpack("ll", sock.getsockopt(socket.SOL_SOCKET, option, 16))


client, server = pair()
for option in RCV, SND:
    print("default:", timeval(client, option))
    client.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 2, 500000))
    print("set:", timeval(client, option))
    show("microseconds too many", client.setsockopt, socket.SOL_SOCKET, option, struct.pack("ll", 0, 1000000))
    show("negative", client.setsockopt, socket.SOL_SOCKET, option, struct.pack("ll", -1, 0))
    print("negative is no waiting:", timeval(client, option))
    show("too short", client.setsockopt, socket.SOL_SOCKET, option, 1)
    client.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, 0))
    print("cleared:", timeval(client, option))

client.setsockopt(socket.SOL_SOCKET, RCV, struct.pack("ll", 0, 300000))
timed("recv", client.recv, 1)
timed("read", os.read, client.fileno(), 1)
timed("recvmsg", client.recvmsg, 1)
server.send(b"abc")
settled(client, "IN")
show("data in time", client.recv, 10)
timed("waitall", client.recv, 10, socket.MSG_WAITALL)

waiting = listener()
waiting.setsockopt(socket.SOL_SOCKET, RCV, struct.pack("ll", 0, 300000))
timed("accept", waiting.accept)
c = socket.socket()
c.connect(waiting.getsockname())
accepted, _ = waiting.accept()
print("inherited by accept:", timeval(accepted, RCV))

server.setsockopt(socket.SOL_SOCKET, SND, struct.pack("ll", 0, 300000))
fill(server)
timed("send", server.send, b"x" * 10)
fill(server)
timed("write", os.write, server.fileno(), b"x" * 10)

udp, _ = datagrams()
udp.setsockopt(socket.SOL_SOCKET, RCV, struct.pack("ll", 0, 300000))
timed("udp recv", udp.recv, 1)
timed("udp recvfrom", udp.recvfrom, 1)

client, server = pair()
client.settimeout(0.3)
timed("python recv", client.recv, 1)
server.settimeout(0.3)
fill_me = b"x" * (1 << 20)


def push():
    while True:
        server.send(fill_me)


server.settimeout(0.3)
timed("python send", push)
