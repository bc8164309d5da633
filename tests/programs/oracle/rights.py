"""SCM_RIGHTS: sockets that travel between processes."""
from transcript import *


def child(action):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def receive(channel, most=8):
    data, numbers, flags, _ = socket.recv_fds(channel, 100, most)
    return data, numbers


near, far = socket.socketpair()

# A connection made after the fork.
def use_connection():
    near.close()
    data, numbers = receive(far)
    sock = socket.socket(fileno=numbers[0])
    sock.sendall(data + b" and " + sock.recv(10))


pid = child(use_connection)
client, server = pair()
client.sendall(b"unread")
settled(server, "IN")
socket.send_fds(near, [b"message"], [server.fileno()])
server.close()
print("connection:", receive_all(client), ended(pid))

# A listener.
def use_listener():
    _, numbers = receive(far)
    waiting = socket.socket(fileno=numbers[0])
    print("listener's name kept:", waiting.getsockname()[0], waiting.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    for _ in range(2):
        accepted, _ = waiting.accept()
        accepted.sendall(b"served")
        accepted.close()


pid = child(use_listener)
waiting = listener()
early = socket.socket()
early.connect(waiting.getsockname())
socket.send_fds(near, [b"x"], [waiting.fileno()])
address = waiting.getsockname()
waiting.close()
print("connected before:", receive_all(early))
c = socket.socket()
c.connect(address)
print("connected after:", receive_all(c), ended(pid))

# Several at once with a pipe among them, back to the sender.
def send_back():
    c1, s1 = pair()
    c2, s2 = pair()
    read, write = os.pipe()
    socket.send_fds(far, [b"four"], [s1.fileno(), read, s2.fileno(), c1.fileno()])
    os.write(write, b"pipe")
    c2.sendall(b"second")


pid = child(send_back)
data, numbers = receive(near)
print("several:", data, len(numbers), ended(pid))
s1, s2, c1 = (socket.socket(fileno=numbers[i]) for i in (0, 2, 3))
print("pipe:", os.read(numbers[1], 10))
print("second:", receive_all(s2))
c1.sendall(b"first")
c1.close()
print("first:", receive_all(s1))

# In flight: sent, closed by the sender, not yet received. The connection stays open.
client, server = pair()
socket.send_fds(near, [b"x"], [server.fileno()])
server.close()
time.sleep(0.1)
print("in flight:", events(mask_of(client)))
client.sendall(b"waited")
_, numbers = receive(far)
print("received by ourselves:", socket.socket(fileno=numbers[0]).recv(10))

# UDP, and close-on-exec of what is received.
import fcntl
first, second = datagrams()
socket.send_fds(near, [b"x"], [first.fileno()])
_, numbers = receive(far)
print("flags:", fcntl.fcntl(numbers[0], fcntl.F_GETFD))
copy = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, fileno=numbers[0])
print("udp is the same:", copy.getsockname() == first.getsockname())
second.sendto(b"to either", first.getsockname())
print("udp:", copy.recv(20))
socket.send_fds(near, [b"x"], [second.fileno()])
data, ancillary, flags, _ = far.recvmsg(10, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
print("MSG_CMSG_CLOEXEC:", fcntl.fcntl(struct.unpack("i", ancillary[0][2])[0], fcntl.F_GETFD))

# To a process that execs first.
import subprocess
code = """
from transcript import *
channel = socket.socket(fileno=int(sys.argv[1]))
_, numbers, _, _ = socket.recv_fds(channel, 10, 1)
socket.socket(fileno=numbers[0]).sendall(b"from another image")
"""
process = subprocess.Popen([sys.executable, "-c", code, str(far.fileno())], pass_fds=[far.fileno()],
                           cwd=os.path.dirname(os.path.abspath(__file__)))
client, server = pair()
socket.send_fds(near, [b"x"], [server.fileno()])
server.close()
print("exec:", receive_all(client), process.wait())
