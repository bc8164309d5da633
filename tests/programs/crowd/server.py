"""Answers every byte on the given port, of as many connections as there are, and exits when the last one has ended."""

import selectors
import socket
import sys

server = socket.create_server(("0.0.0.0", int(sys.argv[1])), backlog=4096)
server.setblocking(False)
selector = selectors.DefaultSelector()
selector.register(server, selectors.EVENT_READ)
ended = 0
while ended == 0 or len(selector.get_map()) > 1:
    for key, _ in selector.select():
        if key.fileobj is server:
            connection, _ = server.accept()
            selector.register(connection, selectors.EVENT_READ)
            continue
        data = key.fileobj.recv(1)
        if data:
            key.fileobj.send(data)
        else:
            selector.unregister(key.fileobj)
            key.fileobj.close()
            ended += 1
