"""Big transfers both ways in pieces of every size, with small buffers and large."""
import hashlib
import random
import threading
from transcript import *


def send(sock, data, seed):
    dice = random.Random(seed)
    view = memoryview(data)
    while view:
        n = sock.send(view[:dice.choice((1, 7, 536, 1460, 4096, 65536, 300_000))])
        view = view[n:]
    sock.shutdown(socket.SHUT_WR)


def receive(sock, seed, into):
    dice = random.Random(seed)
    digest = hashlib.sha256()
    while data := sock.recv(dice.choice((1, 100, 1460, 8192, 100_000))):
        digest.update(data)
    into.append(digest.hexdigest())


def exchange(name, client, server, size, seed):
    up, down = random.Random(seed).randbytes(size), random.Random(seed + 1).randbytes(size)
    at_server, at_client = [], []
    jobs = [(send, (client, up, 1)), (send, (server, down, 2)), (receive, (server, 3, at_server)),
            (receive, (client, 4, at_client))]
    threads = [threading.Thread(target=f, args=a) for f, a in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{name}:", at_server == [hashlib.sha256(up).hexdigest()], at_client == [hashlib.sha256(down).hexdigest()])


exchange("v4", *pair(), 6_000_000, 10)
exchange("v6", *pair(socket.AF_INET6), 2_000_000, 20)
waiting = listener()
waiting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
client = socket.socket()
client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
client.connect(waiting.getsockname())
exchange("small buffers", client, waiting.accept()[0], 300_000, 30)
client, server = pair()
client.settimeout(30)
server.settimeout(30)
exchange("with timeouts", client, server, 2_000_000, 40)
pairs = [pair() for _ in range(8)]
threads = [threading.Thread(target=lambda p=p, i=i: results.append((i, *one(p, i)))) for i, p in enumerate(pairs)]
results = []


def one(ends, seed):
    data = random.Random(seed).randbytes(400_000)
    got = []
    reader = threading.Thread(target=receive, args=(ends[1], seed, got))
    reader.start()
    send(ends[0], data, seed)
    reader.join()
    return (got == [hashlib.sha256(data).hexdigest()],)


for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("eight at once:", sorted(results) == [(i, True) for i in range(8)])

# A reader that is slow to begin, and one that stops.
client, server = pair()
data = bytes(range(256)) * 40_000
thread = threading.Thread(target=send, args=(client, data, 5))
thread.start()
time.sleep(0.5)
print("slow reader:", receive_all(server) == data)
thread.join()

# A full socket that may send no more is writable, and says why it takes nothing.
if hasattr(os, "splice"):
    read, write = os.pipe()
    os.write(write, b"too late")
    near, far = pair()
    near.setblocking(False)
    while outcome(near.send, bytes(65536)) != "EAGAIN":
        pass
    near.shutdown(socket.SHUT_WR)
    show("splice into a full socket that was shut down", os.splice, read, near.fileno(), 100)
    show("nothing was taken", os.read, read, 100)
