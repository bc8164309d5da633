"""Resets and broken pipes: who is told what, and once."""
import subprocess
from transcript import *

SO_ERROR = (socket.SOL_SOCKET, socket.SO_ERROR)
NOSIGNAL = socket.MSG_NOSIGNAL

client, server = pair()
reset(client)
print("mask after a reset:", settled(server, "ERR|HUP"))
show("recv", server.recv, 1)
show("recv again", server.recv, 1)
show("send", server.send, b"x", NOSIGNAL)
print("mask after it was reported:", settled(server, "HUP"))
show("peer", server.getpeername)
show("shutdown", server.shutdown, socket.SHUT_WR)

client, server = pair()
reset(client)
settled(server, "ERR|HUP")
show("send first", server.send, b"x", NOSIGNAL)
show("send second", server.send, b"x", NOSIGNAL)
show("recv after", server.recv, 1)

client, server = pair()
reset(client)
settled(server, "ERR|HUP")
show("SO_ERROR", server.getsockopt, *SO_ERROR)
show("SO_ERROR again", server.getsockopt, *SO_ERROR)
show("recv after SO_ERROR", server.recv, 1)

client, server = pair()
client.send(b"unread by the server")
settled(server, "IN")
reset(client)
settled(server, "ERR|HUP")
show("what came before a reset", server.recv, 100)

client, server = pair()
server.send(b"unread by the client")
settled(client, "IN")
client.close()
print("close with unread bytes:", settled(server, "ERR|HUP"))
show("recv", server.recv, 1)

client, server = pair()
client.close()
settled(server, "RDHUP")
show("send to one that closed", server.send, b"x", NOSIGNAL)
print("its reset arrives:", settled(server, "ERR|HUP"))
show("recv", server.recv, 1)
show("send", server.send, b"x", NOSIGNAL)

client, server = pair()
client.close()
show("the end was read", server.recv, 1)
show("send", server.send, b"x", NOSIGNAL)
settled(server, "ERR|HUP")
show("send after the reset", server.send, b"x", NOSIGNAL)
show("send again", server.send, b"x", NOSIGNAL)

count = []
signal.signal(signal.SIGPIPE, lambda *_: count.append(1))
client, server = pair()
client.shutdown(socket.SHUT_WR)
show("send after shutdown", client.send, b"x")
show("write after shutdown", os.write, client.fileno(), b"x")
show("sendmsg after shutdown", client.sendmsg, [b"x"])
show("send without the signal", client.send, b"x", NOSIGNAL)
print("signals:", len(count))

code = """
import signal, socket
from transcript import pair
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
client, server = pair()
client.shutdown(socket.SHUT_WR)
client.send(b"x")
print("not reached")
"""
child = subprocess.run([sys.executable, "-c", code], cwd=os.path.dirname(os.path.abspath(__file__)))
print("killed by SIGPIPE:", child.returncode == -signal.SIGPIPE)

# A pending connection that its client resets before accept.
server = listener()
client = socket.socket()
client.connect(server.getsockname())
client.send(b"hello")
settled(server, "IN")
reset(client)
time.sleep(0.1)
delivered()
server.setblocking(False)
accepted = outcome(server.accept)
if isinstance(accepted, tuple):
    print("accept gives the dead connection:", outcome(accepted[0].recv, 10))
else:
    print("accept:", accepted)

# A listener that closes resets what it did not accept.
server = listener()
client = socket.socket()
client.connect(server.getsockname())
server.close()
print("the listener closed:", settled(client, "ERR|HUP"))
show("recv", client.recv, 1)

# recv blocked when the reset comes.
import threading
client, server = pair()
thread = threading.Thread(target=lambda: show("blocked recv", server.recv, 1))
thread.start()
time.sleep(0.1)
reset(client)
thread.join()
client, server = pair()
fill(server)
thread = threading.Thread(target=lambda: show("blocked send", server.send, b"y" * 100, NOSIGNAL))
thread.start()
time.sleep(0.1)
reset(client)
thread.join()
