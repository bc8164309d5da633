"""Five hundred connections at once, and the limit of descriptors."""
import resource
from transcript import *

resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
waiting = listener(backlog=600)
ends = []
for i in range(500):
    client = socket.socket()
    client.connect(waiting.getsockname())
    accepted, _ = waiting.accept()
    ends.append((client, accepted))
print("open:", len(ends))
for i, (client, _) in enumerate(ends):
    client.sendall(struct.pack("I", i) * 100)
epoll = select.epoll()
index = {}
for i, (_, accepted) in enumerate(ends):
    epoll.register(accepted, select.EPOLLIN)
    index[accepted.fileno()] = i
right = 0
while right < 500:
    for number, _ in epoll.poll(5):
        i = index[number]
        right += receive_exactly(ends[i][1], 400) == struct.pack("I", i) * 100
        epoll.unregister(number)
        ends[i][1].sendall(b"done")
print("echoed:", right, all(receive_exactly(client, 4) == b"done" for client, _ in ends))
poll = select.poll()
for client, _ in ends:
    poll.register(client, select.POLLIN | select.POLLOUT)
print("all writable:", len(poll.poll(0)))
for client, accepted in ends[:250]:
    client.close()
print("half of them ended:", sum(accepted.recv(1) == b"" for _, accepted in ends[:250]))
for _, accepted in ends[:250]:
    accepted.close()
for client, accepted in ends[250:]:
    client.sendall(b"x")
print("the other half lives:", sum(accepted.recv(1) == b"x" for _, accepted in ends[250:]))
for client, accepted in ends[250:]:
    client.close()
    accepted.close()

# A thousand short ones after each other.
for _ in range(1000):
    client = socket.socket()
    client.connect(waiting.getsockname())
    accepted, _ = waiting.accept()
    accepted.close()
    client.close()
print("a thousand short ones")
# Every number is free again.
probe = socket.socket()
print("numbers are given back:", probe.fileno() < 20)
