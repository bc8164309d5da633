"""What a machine says that it is, is where a program of it can be: by name and by address."""

import ctypes
import socket
import sys

libc = ctypes.CDLL(None)
name = socket.gethostname()


class Hostent(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("aliases", ctypes.c_void_p), ("family", ctypes.c_int),
                ("len", ctypes.c_int), ("addresses", ctypes.POINTER(ctypes.POINTER(ctypes.c_ubyte * 4)))]


def meets(family, address):
    """Binds to an address, listens and is connected to there, by TCP, and is written to by UDP."""
    try:
        server = socket.socket(family)
        server.bind((address, 0))
        server.listen()
        client = socket.create_connection(server.getsockname()[:2], 10)
        accepted, _ = server.accept()
        client.sendall(b"hello")
        a, b = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family, socket.SOCK_DGRAM)
        a.bind((address, 0))
        a.settimeout(10)
        b.sendto(b"hello", a.getsockname())
        return accepted.recv(5) == a.recv(5) == b"hello" and accepted.getsockname()[0] == address
    except OSError as error:
        return f"{address}: {error}"


print("gethostbyname:", meets(socket.AF_INET, socket.gethostbyname(name)))
for kind in (socket.SOCK_STREAM, 0):
    for family in (socket.AF_UNSPEC, socket.AF_INET, socket.AF_INET6):
        try:
            found = socket.getaddrinfo(name, 80, family, kind, flags=socket.AI_CANONNAME)
        except OSError as error:
            print("getaddrinfo:", family.name, error)
            continue
        hosts = dict.fromkeys((each[0], each[4][0]) for each in found)
        print("getaddrinfo:", family.name, all(meets(*host) is True for host in hosts),
              bool(found[0][3]), any(each[3] for each in found[1:]), len(found) % len(hosts))
libc.gethostbyname.restype = ctypes.POINTER(Hostent)
one = libc.gethostbyname(name.encode()).contents
print("struct hostent:", one.family == socket.AF_INET, one.len, bool(one.addresses[0]))
host = socket.gethostbyname(name)
named, port = socket.getnameinfo((host, 80), socket.NI_NUMERICSERV)
print("getnameinfo:", socket.gethostbyname(named) == host, port)
print("numbers only:", end=" ")
try:
    print(socket.getaddrinfo(name, 80, flags=socket.AI_NUMERICHOST))
except socket.gaierror as error:
    print(error.errno == socket.EAI_NONAME)
if "detail" in sys.argv:
    print(name, host, named, one.name.decode())
