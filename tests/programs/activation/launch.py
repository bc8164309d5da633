"""Starts a program as systemd would: launch.py NAMES SOCKET... -- PROGRAM...

SOCKET is tcp4, tcp6, both (TCP on [::]), udp4, udp6, dual (UDP on [::]), unix or pipe. Descriptors
begin at 3. The ports stand on standard output, one line for each socket. NAMES are LISTEN_FDNAMES; "-": none.
"""

import os
import socket
import sys

names, words = sys.argv[1], sys.argv[2:]
cut = words.index("--")
kinds, program = words[:cut], words[cut + 1 :]
families = {
    "tcp4": (socket.AF_INET, "127.0.0.1"), "udp4": (socket.AF_INET, "127.0.0.1"),
    "tcp6": (socket.AF_INET6, "::1"), "udp6": (socket.AF_INET6, "::1"),
    "both": (socket.AF_INET6, "::"), "dual": (socket.AF_INET6, "::"),
}


def made(kind):
    if kind == "pipe":
        return os.dup(os.pipe()[0])
    if kind == "unix":
        made = socket.socketpair()[0]
        return os.dup(made.fileno())
    family, host = families[kind]
    udp = kind in ("udp4", "udp6", "dual")
    s = socket.socket(family, socket.SOCK_DGRAM if udp else socket.SOCK_STREAM)
    if family == socket.AF_INET6:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
    s.bind((host, 0))
    if not udp:
        s.listen(8)
    print(s.getsockname()[1], flush=True)
    return os.dup(s.fileno())


# Descriptors from 3 on are free for them: all numbers are moved up first.
high = [os.dup(fd) for fd in [made(kind) for kind in kinds]]
import fcntl

high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in high]
for number, fd in enumerate(high, 3):
    os.dup2(fd, number, inheritable=True)
os.environ["LISTEN_FDS"] = str(len(kinds))
os.environ["LISTEN_PID"] = str(os.getpid())
if names != "-":
    os.environ["LISTEN_FDNAMES"] = names
os.execvp(program[0], program)
