"""exec: sockets as standard input and output, passed by number, and closed on exec."""
import subprocess
from transcript import *

HERE = os.path.dirname(os.path.abspath(__file__))
os.chdir(HERE)

# As inetd does it.
client, server = pair()
process = subprocess.Popen(["cat"], stdin=server, stdout=server)
server.close()
client.sendall(b"through cat")
client.shutdown(socket.SHUT_WR)
print("cat:", receive_all(client), process.wait())

client, server = pair()
process = subprocess.Popen(["sh", "-c", "read line; echo got $line; exec tr a-z A-Z"], stdin=server, stdout=server, stderr=server)
server.close()
client.sendall(b"first\n")
print("sh:", receive_exactly(client, 10))
client.sendall(b"second\n")
client.shutdown(socket.SHUT_WR)
print("then tr:", receive_all(client), process.wait())

# A big one through a pipeline of programs.
client, server = pair()
process = subprocess.Popen(["sh", "-c", "cat | gzip -1 | gzip -d | wc -c"], stdin=server, stdout=server)
server.close()
import threading
threading.Thread(target=lambda: [client.sendall(bytes(3_000_000)), client.shutdown(socket.SHUT_WR)]).start()
print("pipeline:", receive_all(client).strip(), process.wait())

# Passed by number to another image.
code = """
from transcript import *
sock = socket.socket(fileno=int(sys.argv[1]))
print("type:", sock.type == socket.SOCK_STREAM, sock.getpeername()[0], os.get_blocking(sock.fileno()))
sock.sendall(sock.recv(100)[::-1])
"""
client, server = pair()
sys.stdout.flush()
process = subprocess.Popen([sys.executable, "-c", code, str(server.fileno())], pass_fds=[server.fileno()])
server.close()
client.sendall(b"forwards")
print("passed:", receive_all(client), process.wait())

code = """
from transcript import *
waiting = socket.socket(fileno=int(sys.argv[1]))
accepted, peer = waiting.accept()
accepted.sendall(b"accepted by " + sys.argv[2].encode())
accepted.close()
"""
waiting = listener()
process = subprocess.Popen([sys.executable, "-c", code, str(waiting.fileno()), "another"], pass_fds=[waiting.fileno()])
c = socket.socket()
c.connect(waiting.getsockname())
print("listener passed:", receive_all(c), process.wait())
# A connection that was waiting when the new image began.
c = socket.socket()
c.connect(waiting.getsockname())
time.sleep(0.1)
process = subprocess.Popen([sys.executable, "-c", code, str(waiting.fileno()), "the next"], pass_fds=[waiting.fileno()])
print("waiting before exec:", receive_all(c), process.wait())

# What is close-on-exec is gone in the other image, and the connection ends with the last holder.
client, server = pair()
process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
server.close()
print("close-on-exec:", settled(client, "RDHUP"), process.poll())
process.communicate()
client, server = pair()
server.set_inheritable(True)
process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
server.close()
time.sleep(0.1)
print("inherited:", events(mask_of(client)))
process.communicate()
print("and ended:", process.wait(), settled(client, "RDHUP"))

# Bytes that were not read before exec are read after it; bytes that were not sent go out.
client, server = pair()
client.sendall(b"head tail")
receive_exactly(server, 5)
process = subprocess.Popen(["cat"], stdin=server, stdout=subprocess.PIPE)
client.shutdown(socket.SHUT_WR)
print("unread:", process.communicate()[0])

pid = os.fork()
client, server = (None, None) if pid else pair()
if pid == 0:
    os.dup2(server.fileno(), 0)
    client.sendall(b"same process, new image\n")
    client.shutdown(socket.SHUT_WR)
    os.execlp("cat", "cat")
print("exec in the same process:", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

# An exec that fails leaves everything as it was.
client, server = pair()
show("exec of nothing", os.execv, "/no/such/program", ["x"])
client.send(b"still works")
show("after it", server.recv, 20)
c2, s2 = pair()
c2.send(b"and new ones")
show("after it", s2.recv, 20)

# posix_spawn with file actions.
client, server = pair()
pid = os.posix_spawn("/bin/cat", ["cat"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, server.fileno(), 0),
                                                                    (os.POSIX_SPAWN_DUP2, server.fileno(), 1),
                                                                    (os.POSIX_SPAWN_CLOSE, client.fileno())])
server.close()
client.sendall(b"spawned")
client.shutdown(socket.SHUT_WR)
print("posix_spawn:", receive_all(client), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

# system and popen know nothing of it.
client, server = pair()
print("system:", os.system("true"), os.popen("echo popen").read().strip())
client.send(b"unharmed")
show("after it", server.recv, 20)

# An environment that the program chose itself.
client, server = pair()
process = subprocess.Popen(["/bin/cat"], stdin=server, stdout=server, env={})
server.close()
client.sendall(b"empty environment")
client.shutdown(socket.SHUT_WR)
print("no environment:", receive_all(client), process.wait())
# A child of a child.
client, server = pair()
process = subprocess.Popen(["sh", "-c", "sh -c 'sh -c cat'"], stdin=server, stdout=server)
server.close()
client.sendall(b"deep")
client.shutdown(socket.SHUT_WR)
print("deep:", receive_all(client), process.wait())
