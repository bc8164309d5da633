"""FIONREAD, SIOCOUTQ, FIONBIO, SIOCATMARK and their likes."""
import array
import fcntl
import termios
from transcript import *

SIOCOUTQ, FIONBIO, FIOASYNC, SIOCATMARK, FIOCLEX, FIONCLEX = 0x5411, 0x5421, 0x5452, 0x8905, 0x5451, 0x5450


def number(sock, request, value=0):
    buffer = array.array("i", [value])
    fcntl.ioctl(sock, request, buffer)
    return buffer[0]


client, server = pair()
show("empty", number, client, termios.FIONREAD)
server.sendall(b"x" * 1000)
settled(client, "IN")
show("1000", number, client, termios.FIONREAD)
client.recv(300)
show("700", number, client, termios.FIONREAD)
client.recv(700, socket.MSG_PEEK)
show("peeking leaves", number, client, termios.FIONREAD)
print("all sent and acknowledged:", eventually(lambda: number(server, SIOCOUTQ) == 0))
total = fill(server)
print("full: SIOCOUTQ is more than nothing", number(server, SIOCOUTQ) > 0, "and no more than was sent",
      number(server, SIOCOUTQ) <= total)
print("unread and unsent make all:", eventually(lambda: number(server, SIOCOUTQ) + number(client, termios.FIONREAD) - 700 == total))
receive_exactly(client, total + 700)
print("drained:", eventually(lambda: number(server, SIOCOUTQ) == 0), number(client, termios.FIONREAD))
server.sendall(b"end")
server.shutdown(socket.SHUT_WR)
settled(client, "IN|RDHUP")
show("the end does not count", number, client, termios.FIONREAD)
client.recv(10)
show("after the end", number, client, termios.FIONREAD)

waiting = listener()
show("listener FIONREAD", number, waiting, termios.FIONREAD)
show("listener SIOCOUTQ", number, waiting, SIOCOUTQ)

first, second = datagrams()
show("udp empty", number, first, termios.FIONREAD)
for size in 10, 0, 200:
    second.sendto(b"x" * size, first.getsockname())
settled(first, "IN")
delivered()
show("udp: the next one", number, first, termios.FIONREAD)
first.recv(5)
show("udp: an empty one", number, first, termios.FIONREAD)
first.recv(5)
show("udp: the third", number, first, termios.FIONREAD)

client, server = pair()
number(client, FIONBIO, 1)
print("FIONBIO:", bool(fcntl.fcntl(client, fcntl.F_GETFL) & os.O_NONBLOCK), outcome(client.recv, 1))
number(client, FIONBIO, 0)
print("off:", bool(fcntl.fcntl(client, fcntl.F_GETFL) & os.O_NONBLOCK))
show("SIOCATMARK", number, client, SIOCATMARK)
fcntl.ioctl(client, FIONCLEX)
print("FIONCLEX:", fcntl.fcntl(client, fcntl.F_GETFD))
fcntl.ioctl(client, FIOCLEX)
print("FIOCLEX:", fcntl.fcntl(client, fcntl.F_GETFD))
show("TCGETS", fcntl.ioctl, client, termios.TCGETS, b"\0" * 60)
show("unknown", fcntl.ioctl, client, 0x12345678, b"\0" * 8)
