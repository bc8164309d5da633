"""MSG_PEEK, MSG_WAITALL, MSG_DONTWAIT, MSG_TRUNC on a stream."""
import threading
from transcript import *

client, server = pair()
show("nothing there", client.recv, 1, socket.MSG_DONTWAIT)
show("nothing to peek at", client.recv, 1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
server.sendall(b"abcdefghij")
settled(client, "IN")
show("peek 4", client.recv, 4, socket.MSG_PEEK)
show("peek 99", client.recv, 99, socket.MSG_PEEK)
show("peek again", client.recv, 4, socket.MSG_PEEK)
show("recv 4", client.recv, 4)
show("recv 0", client.recv, 0)
show("truncate 3", lambda: call("recv", client.fileno(), None, 3, socket.MSG_TRUNC))
show("the rest", client.recv, 99)


def later(*parts, end=False):
    def run():
        for part in parts:
            time.sleep(0.05)
            server.sendall(part)
        if end:
            time.sleep(0.05)
            server.shutdown(socket.SHUT_WR)
    thread = threading.Thread(target=run)
    thread.start()
    return thread


thread = later(b"1234", b"5678", b"90ab")
show("waitall 10", client.recv, 10, socket.MSG_WAITALL)
thread.join()
show("what is left", client.recv, 99)
thread = later(b"1234", b"5678")
show("waitall and peek", client.recv, 8, socket.MSG_WAITALL | socket.MSG_PEEK)
thread.join()
show("still there", client.recv, 99)
server.sendall(b"xyz")
settled(client, "IN")
show("waitall, not waiting", client.recv, 10, socket.MSG_WAITALL | socket.MSG_DONTWAIT)
thread = later(b"half")
show("without waitall", client.recv, 10)
thread.join()
client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 2, 0))
thread = later(b"only this")
show("waitall with a timeout", client.recv, 20, socket.MSG_WAITALL)
thread.join()
client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 300000))
show("a timeout", client.recv, 20)
client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
thread = later(b"the ", b"end", end=True)
show("waitall up to the end", client.recv, 20, socket.MSG_WAITALL)
thread.join()
show("the end", client.recv, 20)
show("the end again, peeked", client.recv, 20, socket.MSG_PEEK)
show("the end, not waiting", client.recv, 20, socket.MSG_DONTWAIT)
show("error queue is empty", client.recv, 20, socket.MSG_ERRQUEUE)
buffer = bytearray(b"........")
client.sendall(b"into")
settled(server, "IN")
print("recv_into:", server.recv_into(buffer, 3), bytes(buffer))
print("recvmsg:", server.recvmsg(10, 100))
