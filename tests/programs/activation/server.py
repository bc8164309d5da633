"""Answers once on port 80 by TCP and once on port 53 by UDP, in the order in which clients come, with the
client's address as it is seen here: server.py FAMILY COUNT. At last it says what it was handed."""

import os
import select
import socket
import sys

family = socket.AF_INET6 if sys.argv[1] == "6" else socket.AF_INET
any_host = "::" if family == socket.AF_INET6 else "0.0.0.0"
tcp, udp = socket.socket(family), socket.socket(family, socket.SOCK_DGRAM)
if family == socket.AF_INET6:
    for each in (tcp, udp):
        each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
tcp.bind((any_host, 80))
udp.bind((any_host, 53))
tcp.listen(8)
for _ in range(int(sys.argv[2])):
    ready, _, _ = select.select([tcp, udp], [], [], 20)
    if tcp in ready:
        connection, client = tcp.accept()
        connection.sendall(b"tcp " + connection.recv(100) + b" of " + client[0].encode())
        connection.close()
    elif udp in ready:
        said, client = udp.recvfrom(100)
        udp.sendto(b"udp " + said + b" of " + client[0].encode(), client)
own = {name: os.environ.get(name) for name in ("LISTEN_FDS", "LISTEN_FDNAMES")}
mine = os.environ.get("LISTEN_PID") == str(os.getpid())
print("handed", own["LISTEN_FDS"], own["LISTEN_FDNAMES"], mine)
