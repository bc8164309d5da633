"""What calls say on sockets that are in no state for them."""
from transcript import *

signal.signal(signal.SIGPIPE, lambda *_: print("SIGPIPE"))
tcp = socket.socket()
show("tcp send", tcp.send, b"x")
show("tcp send without signal", tcp.send, b"x", socket.MSG_NOSIGNAL)
show("tcp recv", tcp.recv, 1)
show("tcp recv not blocking", tcp.recv, 1, socket.MSG_DONTWAIT)
show("tcp peer", tcp.getpeername)
show("tcp write", os.write, tcp.fileno(), b"x")
show("tcp read", os.read, tcp.fileno(), 1)
print("tcp mask:", events(mask_of(tcp)))
show("tcp SO_ERROR", tcp.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)
show("tcp shutdown", tcp.shutdown, socket.SHUT_RDWR)

server = listener()
show("listener send", server.send, b"x", socket.MSG_NOSIGNAL)
show("listener recv", server.recv, 1)
show("listener peer", server.getpeername)
server.setblocking(False)
show("listener accept, nobody there", server.accept)
print("listener mask:", events(mask_of(server)))

udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
show("udp send", udp.send, b"x")
show("udp write", os.write, udp.fileno(), b"x")
show("udp recv not blocking", udp.recv, 1, socket.MSG_DONTWAIT)
show("udp peer", udp.getpeername)
show("udp accept", udp.accept)
show("udp listen", udp.listen)
print("udp mask:", events(mask_of(udp)))
show("udp to port 0", udp.sendto, b"x", ("127.0.0.1", 0))
show("udp send OOB", udp.sendto, b"x", socket.MSG_OOB, ("127.0.0.1", 9))
show("udp shutdown", udp.shutdown, socket.SHUT_RDWR)

client, accepted = pair()
show("tcp sendto with an address", client.sendto, b"x", ("127.0.0.1", 9))
print("it arrives:", accepted.recv(10))
print("recvfrom has no address:", client.send(b"y"), accepted.recvfrom(1))

show("unknown family", socket.socket, 44)
show("unknown type", socket.socket, socket.AF_INET, 77)
show("unknown protocol", socket.socket, socket.AF_INET, socket.SOCK_STREAM, 17)
show("protocol by number", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 6).proto)
show("seqpacket", socket.socket, socket.AF_INET, socket.SOCK_SEQPACKET)
show("socketpair", call, "socketpair", socket.AF_INET, socket.SOCK_STREAM, 0, (ctypes.c_int * 2)())

number = client.fileno()
client.close()
probe = socket.socket()
for name, args in {"send": (b"x", 1, 0), "recv": (b"xx", 1, 0), "listen": (1,), "shutdown": (2,), "fcntl": (3,),
                   "accept": (None, None), "write": (b"x", 1), "close": ()}.items():
    show(f"EBADF {name}", call, name, 1_000_000, *args)
read, write = os.pipe()
for name, args in {"send": (b"x", 1, 0), "listen": (1,), "shutdown": (2,), "accept": (None, None)}.items():
    show(f"pipe {name}", call, name, read, *args)
show("pipe getsockopt", socket.socket.getsockopt, probe, socket.SOL_SOCKET, 9999)
show("lseek", os.lseek, probe.fileno(), 0, 0)
show("pread", os.pread, probe.fileno(), 1, 0)
show("pwrite", os.pwrite, probe.fileno(), b"x", 0)
show("ftruncate", os.ftruncate, probe.fileno(), 0)
show("isatty", os.isatty, probe.fileno())
import stat
print("fstat:", stat.S_ISSOCK(os.fstat(probe.fileno()).st_mode))
import fcntl
print("F_GETFL:", fcntl.fcntl(probe, fcntl.F_GETFL) == os.O_RDWR, "F_GETFD:", fcntl.fcntl(probe, fcntl.F_GETFD))
