"""What a program finds of the names web.example, db and db2, and of the machine's name."""
import ctypes
import os
import platform
import socket
import subprocess
import sys

libc = ctypes.CDLL(None, use_errno=True)


def by_syscall():
    """uname(2) past libc's function: 6 texts of 65 bytes, the second one is the name."""
    room = ctypes.create_string_buffer(6 * 65)
    number = {"x86_64": 63, "aarch64": 160}[platform.machine()]
    libc.syscall(ctypes.c_long(number), room)
    return room.raw[65:130].split(b"\0")[0].decode()


def found(name, family=0):
    """Addresses by getaddrinfo, each once. Their order is by what the machine can reach."""
    entries = socket.getaddrinfo(name, 1, family)
    return " ".join(sorted({entry[4][0] for entry in entries}))


def text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def by_addr(number):
    return socket.gethostbyaddr(number)[0]


if sys.argv[1:] == ["name"]:
    print(socket.gethostname())
    sys.exit()
print("gethostname:", socket.gethostname(), os.uname().nodename, by_syscall())
print("files:", text("/proc/sys/kernel/hostname").strip(), text("/etc/hostname").strip())
print("environment:", os.environ.get("HOSTNAME"))
short = ctypes.create_string_buffer(b"####", 4)
result = libc.gethostname(short, 4)
print("too little room:", result, ctypes.get_errno(), short.raw)
for name in ("web.example", "WEB.Example", "db"):
    print(f"{name}:", found(name))
print("db2:", found("db2", socket.AF_INET))
print("gethostbyname:", socket.gethostbyname("web.example"), socket.gethostbyname("db"))
own, other, sixth = "10.0.2.15", "192.0.2.7", "2001:db8::7"
back = [socket.getnameinfo((number, 80), 0)[0] for number in (own, other, sixth)]
print("back:", *back)
print("gethostbyaddr:", *map(by_addr, (own, other, sixth)))
print("fully:", socket.getfqdn(other))
lines = text("/etc/hosts").splitlines()
print("hosts:", " | ".join(" ".join(line.split()) for line in lines[:4]))
print("the rest of hosts:", any("localhost" in line for line in lines[4:]))
sys.stdout.flush()
child = subprocess.run([sys.executable, __file__, "name"], stdout=subprocess.PIPE, check=True)
print("child:", child.stdout.decode().strip())
