"""fork: listeners and connections that parent and child share."""
from transcript import *


def child(action):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(50)
            action()
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# The child talks on a connection of the parent.
client, server = pair()
pid = child(lambda: server.sendall(b"from the child"))
server.close()
print("connection:", receive_all(client), ended(pid))

# The parent closes its copy: the connection lives on in the child.
client, server = pair()
ready, go = os.pipe()
pid = child(lambda: (os.read(ready, 1), server.sendall(b"late"), server.shutdown(socket.SHUT_WR)))
server.close()
time.sleep(0.1)
print("nobody closed:", events(mask_of(client)))
os.write(go, b"x")
print("late:", receive_all(client), ended(pid))

# Both ends of one stream in two processes, and the child's exit ends it.
client, server = pair()


def echo():
    client.close()
    while data := server.recv(100):
        server.sendall(data.upper())


pid = child(echo)
server.close()
client.sendall(b"shout")
print("echo:", receive_exactly(client, 5))
client.shutdown(socket.SHUT_WR)
print("and the end:", client.recv(1), ended(pid))

# A child that is killed: its connections end.
client, server = pair()
pid = child(lambda: time.sleep(60))
server.close()
print("before:", events(mask_of(client)))
os.kill(pid, signal.SIGKILL)
print("killed:", ended(pid), settled(client, "RDHUP"), outcome(client.recv, 1))

# Workers accept on one listener.
waiting = listener(backlog=64)


def worker():
    for _ in range(5):
        accepted, _ = waiting.accept()
        data = accepted.recv(10)
        accepted.sendall(data + b" served")
        accepted.close()


workers = [child(worker) for _ in range(3)]
answers = []
for i in range(15):
    c = socket.socket()
    c.connect(waiting.getsockname())
    c.sendall(b"%02d" % i)
    answers.append(receive_all(c))
print("workers:", answers == [b"%02d served" % i for i in range(15)], [ended(w) for w in workers])

# Children with their own epolls on the shared listener.
waiting.setblocking(False)


def epoll_worker():
    epoll = select.epoll()
    epoll.register(waiting, select.EPOLLIN | (1 << 28))
    served = {}
    while True:
        for number, _ in epoll.poll(10):
            if number == waiting.fileno():
                accepted = outcome(waiting.accept)
                if not isinstance(accepted, str):
                    served[accepted[0].fileno()] = accepted[0]
                    epoll.register(accepted[0], select.EPOLLIN)
            else:
                sock = served.pop(number)
                data = sock.recv(10)
                sock.sendall(data)
                sock.close()
                if data == b"stop":
                    return


workers = [child(epoll_worker) for _ in range(2)]
for i in range(20):
    c = socket.socket()
    c.connect(waiting.getsockname())
    c.sendall(b"%02d" % i)
    answers[i % 15] = receive_all(c)
print("epoll workers:", sorted(answers)[-5:])
for w in workers:
    c = socket.socket()
    c.connect(waiting.getsockname())
    c.sendall(b"stop")
    receive_all(c)
print("stopped:", [ended(w) for w in workers])
# A connection that no worker is left for, accepted by the parent.
c = socket.socket()
c.connect(waiting.getsockname())
waiting.setblocking(True)
accepted, _ = waiting.accept()
c.sendall(b"parent")
print("parent:", accepted.recv(10))

# Options and O_NONBLOCK are shared with the child, close-on-exec and closing are not.
client, server = pair()
pid = child(lambda: (client.setblocking(False), client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), client.close()))
ended(pid)
print("shared:", os.get_blocking(client.fileno()), client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
server.send(b"open")
settled(client, "IN")
print("still", client.recv(10))

# The child makes sockets of its own; both sides connect to each other.
ready, tell = os.pipe()


def serve():
    own = listener()
    os.write(tell, str(own.getsockname()[1]).encode())
    accepted, _ = own.accept()
    accepted.sendall(receive_exactly(accepted, 5)[::-1])


pid = child(serve)
c = socket.socket()
c.connect(("127.0.0.1", int(os.read(ready, 10))))
c.sendall(b"abcde")
print("child as server:", receive_exactly(c, 5), ended(pid))

# Grandchild after the child is gone.
client, server = pair()


def orphan():
    if os.fork() == 0:
        time.sleep(0.2)
        server.sendall(b"grandchild")
        os._exit(0)


pid = child(orphan)
server.close()
print("child:", ended(pid), "then:", receive_all(client))

# Many forks.
client, server = pair()
for i in range(20):
    ended(child(lambda: server.sendall(b"%02d " % i)))
print("twenty:", receive_exactly(client, 60))

# UDP.
first, second = datagrams()
pid = child(lambda: first.sendto(second.recv(10) + b" back", second.getsockname()))
first.sendto(b"there and", second.getsockname())
ended(pid)
print("udp:", second.recv(30))
