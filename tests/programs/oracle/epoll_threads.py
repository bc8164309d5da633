"""epoll from several threads: no event lost, none given twice, and waits that others wake."""
import threading
from transcript import *

# One-shot: each round of readiness goes to one thread.
epoll = select.epoll()
pairs = [pair() for _ in range(20)]
by_number = {}
for client, server in pairs:
    epoll.register(client, select.EPOLLIN | select.EPOLLONESHOT)
    by_number[client.fileno()] = client
counts = {n: 0 for n in by_number}
inside = {n: 0 for n in by_number}
overlaps = []
stop = threading.Event()


def work():
    while not stop.is_set():
        for number, _ in epoll.poll(0.05, 1):
            inside[number] += 1
            if inside[number] != 1:
                overlaps.append(number)
            counts[number] += len(by_number[number].recv(100))
            inside[number] -= 1
            epoll.modify(number, select.EPOLLIN | select.EPOLLONESHOT)


threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(50):
    for _, server in pairs:
        server.send(b"x")
print("every byte was seen:", eventually(lambda: all(c == 50 for c in counts.values())))
stop.set()
for thread in threads:
    thread.join()
print("never two threads on one socket:", overlaps)

# Edge-triggered: a waiter in another thread is woken by what is added and modified meanwhile.
epoll = select.epoll()
client, server = pair()
seen = []
thread = threading.Thread(target=lambda: seen.append([events(m) for _, m in epoll.poll(30)]))
thread.start()
time.sleep(0.1)
server.send(b"x")
settled(client, "IN")
epoll.register(client, select.EPOLLIN | select.EPOLLET)
thread.join()
print("added while another waits:", seen)
thread = threading.Thread(target=lambda: seen.append([events(m) for _, m in epoll.poll(30)]))
thread.start()
time.sleep(0.1)
epoll.modify(client, select.EPOLLOUT | select.EPOLLET)
thread.join()
print("modified while another waits:", seen[1:])

# Two epolls, one socket: both hear.
one, two = select.epoll(), select.epoll()
client, server = pair()
for epoll in one, two:
    epoll.register(client, select.EPOLLIN | select.EPOLLET)
server.send(b"x")
print("two epolls:", len(one.poll(30)), len(two.poll(30)), len(one.poll(0)), len(two.poll(0)))

# Threads that block in recv on one socket share what comes.
client, server = pair()
got = []
threads = [threading.Thread(target=lambda: got.append(client.recv(1))) for _ in range(4)]
for thread in threads:
    thread.start()
time.sleep(0.1)
server.sendall(b"wxyz")
for thread in threads:
    thread.join()
print("blocked in recv:", sorted(got))
waiting = listener()
threads = [threading.Thread(target=lambda: got.append(waiting.accept()[0].recv(1))) for _ in range(4)]
got.clear()
for thread in threads:
    thread.start()
time.sleep(0.1)
clients = []
for byte in b"abcd":
    c = socket.socket()
    c.connect(waiting.getsockname())
    c.send(bytes([byte]))
    clients.append(c)
for thread in threads:
    thread.join()
print("blocked in accept:", sorted(got))

# Sender and receiver at once on both ends.
client, server = pair()
total = 3 << 20
sums = {}


def send(sock):
    left = total
    while left:
        left -= sock.send(b"d" * min(left, 50_000))


def receive(name, sock):
    sums[name] = len(receive_exactly(sock, total))


threads = [threading.Thread(target=f, args=a) for f, a in
           [(send, (client,)), (send, (server,)), (receive, ("client", client)), (receive, ("server", server))]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("both ways at once:", sums["client"] == sums["server"] == total)
