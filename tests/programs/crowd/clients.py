"""Connects to the given port as many times as said, all at once, and says how many connections were answered and how
many were refused. Each of them is open until the last one has heard something."""

import selectors
import socket
import sys

port, count = int(sys.argv[1]), int(sys.argv[2])
selector = selectors.DefaultSelector()
clients = [socket.socket() for _ in range(count)]
for client in clients:
    client.setblocking(False)
    client.connect_ex(("127.0.0.1", port))
    selector.register(client, selectors.EVENT_WRITE)
answered = refused = 0
while answered + refused < count:
    for key, events in selector.select():
        try:
            if events & selectors.EVENT_WRITE:
                key.fileobj.send(b"x")
                selector.modify(key.fileobj, selectors.EVENT_READ)
                continue
            answers = len(key.fileobj.recv(1))
        except ConnectionError:
            answers = 0
        answered += answers
        refused += 1 - answers
        selector.unregister(key.fileobj)
print(answered, refused)
