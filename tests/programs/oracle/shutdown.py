"""shutdown and close: what either side reads, may send and polls."""
from transcript import *

signal.signal(signal.SIGPIPE, lambda *_: print("SIGPIPE"))
NOSIGNAL = socket.MSG_NOSIGNAL

for family in socket.AF_INET, socket.AF_INET6:
    client, server = pair(family)
    client.sendall(b"request")
    show("shut write", client.shutdown, socket.SHUT_WR)
    print("server reads:", receive_all(server), "and again:", server.recv(1))
    print("server mask:", settled(server, "RDHUP"))
    print("client mask:", events(mask_of(client)))
    show("client sends", client.send, b"x", NOSIGNAL)
    show("shut write again", client.shutdown, socket.SHUT_WR)
    server.sendall(b"answer")
    print("half closed:", receive_exactly(client, 6))
    server.close()
    print("client mask:", settled(client, "HUP"))
    show("client reads", client.recv, 1)
    print("after both ends:", outcome(client.shutdown, socket.SHUT_RDWR))
    client.close()

client, server = pair()
show("shut read", client.shutdown, socket.SHUT_RD)
print("client mask:", settled(client, "RDHUP"))
show("client reads", client.recv, 1)
show("server still sends", server.send, b"data")
show("client still sends", client.send, b"up")
show("server reads", server.recv, 10)
print("server mask:", events(mask_of(server)))

client, server = pair()
server.send(b"before")
settled(client, "IN")
client.shutdown(socket.SHUT_RD)
show("read what was there", client.recv, 10)
show("then the end", client.recv, 10)

client, server = pair()
show("shut both", client.shutdown, socket.SHUT_RDWR)
print("client mask:", settled(client, "HUP"))
show("client reads", client.recv, 1)
show("client sends", client.send, b"x")
show("server reads", server.recv, 1)
print("server mask:", settled(server, "RDHUP"))
server.shutdown(socket.SHUT_WR)
print("server mask:", settled(server, "HUP"))
print("shut after both:", eventually(lambda: outcome(server.shutdown, socket.SHUT_WR) == "ENOTCONN"))

client, server = pair()
show("bad how", client.shutdown, 9)
show("bad how, negative", client.shutdown, -1)

# Data and the end arrive together.
client, server = pair()
client.sendall(b"last words")
client.close()
print("server mask:", settled(server, "IN|RDHUP"))
show("server reads", server.recv, 100)
show("server reads", server.recv, 100)
show("name after the end", lambda: server.getpeername()[0])

# A listener that is shut down stops listening.
waiting = listener()
show("shut a listener", waiting.shutdown, socket.SHUT_RD)
waiting.setblocking(False)
show("accept after it", waiting.accept)
show("connect after it", socket.socket().connect, waiting.getsockname())

# UDP.
first, second = datagrams()
first.connect(second.getsockname())
show("udp shut write", first.shutdown, socket.SHUT_WR)
show("udp send", first.send, b"x", NOSIGNAL)
show("udp shut read", first.shutdown, socket.SHUT_RD)
show("udp read", first.recv, 10)
print("udp mask:", events(mask_of(first)))

# A thread that waits in recv or accept is woken by shutdown from another.
import threading
client, server = pair()
thread = threading.Thread(target=lambda: show("woken recv", client.recv, 10))
thread.start()
time.sleep(0.1)
client.shutdown(socket.SHUT_RDWR)
thread.join()
waiting = listener()
thread = threading.Thread(target=lambda: show("woken accept", waiting.accept))
thread.start()
time.sleep(0.1)
waiting.shutdown(socket.SHUT_RDWR)
thread.join()

# Both ends close one after the other: only the first one goes to TIME-WAIT.
def in_time_wait(*ports):
    lines = [line.split() for line in open("/proc/net/tcp").read().splitlines()[1:]]
    ends = [[int(end.split(":")[1], 16) for end in line[1:3]] for line in lines if line[3] == "06"]
    return [local for local, remote in ends if {local, remote} == set(ports)]


for first in 0, 1:
    seen = []
    for _ in range(20):
        ends = pair()
        ports = [end.getsockname()[1] for end in ends]
        ends[first].close()
        ends[not first].close()
        eventually(lambda: in_time_wait(*ports))
        seen.append(in_time_wait(*ports) == [ports[first]])
    print("TIME-WAIT at the first end only:", seen.count(True))
