"""The networking modules of Python's library."""
import asyncio
import http.client
import http.server
import selectors
import socketserver
import ssl
import subprocess
import tempfile
import threading
import urllib.request
from transcript import *


# asyncio
async def echo(reader, writer):
    while data := await reader.read(1000):
        writer.write(data)
        await writer.drain()
    writer.close()


async def streams():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def one(i):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent = bytes([i]) * (1000 * i + 1)
        writer.write(sent)
        writer.write_eof()
        got = await reader.read()
        writer.close()
        await writer.wait_closed()
        return got == sent

    results = await asyncio.gather(*(one(i) for i in range(30)))
    print("asyncio streams:", sum(results))
    try:
        await asyncio.open_connection("127.0.0.1", 1)
    except OSError as error:
        print("asyncio refused:", errno.errorcode[error.errno])
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.wait_for(reader.read(1), 0.2)
    except asyncio.TimeoutError:
        print("asyncio timeout")
    writer.close()
    await asyncio.sleep(0.05)
    server.close()

    loop = asyncio.get_running_loop()
    heard = loop.create_future()

    class Datagrams(asyncio.DatagramProtocol):
        def datagram_received(self, data, sender):
            heard.set_result(data)

    receiver, _ = await loop.create_datagram_endpoint(Datagrams, local_addr=("127.0.0.1", 0))
    sender, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=receiver.get_extra_info("sockname"))
    sender.sendto(b"datagram")
    print("asyncio udp:", await asyncio.wait_for(heard, 30))
    process = await asyncio.create_subprocess_exec("echo", "subprocess", stdout=asyncio.subprocess.PIPE)
    print("asyncio", (await process.communicate())[0])


asyncio.run(streams())

# selectors, each kind
for kind in selectors.SelectSelector, selectors.PollSelector, selectors.EpollSelector:
    chosen = kind()
    client, server = pair()
    chosen.register(client, selectors.EVENT_READ, "client")
    print(kind.__name__, chosen.select(0), end=" ")
    threading.Timer(0.05, server.send, (b"x",)).start()
    print([(key.data, mask) for key, mask in chosen.select(30)])
    chosen.close()


# socketserver: threads and processes
class Upper(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())


for kind in socketserver.ThreadingTCPServer, socketserver.ForkingTCPServer:
    with kind(("127.0.0.1", 0), Upper) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        for word in b"first\n", b"second\n":
            with socket.create_connection(server.server_address, 30) as sock:
                sock.sendall(word)
                sock.shutdown(socket.SHUT_WR)
                print(kind.__name__, receive_all(sock))
        server.shutdown()
        thread.join()


# http
class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = self.path.encode() * 1000
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", "10")
        self.end_headers()
        self.wfile.write(b"%010d" % len(body))

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
port = server.server_address[1]
connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
for path in "/a", "/bc":
    connection.request("GET", path)
    answer = connection.getresponse()
    print("http:", answer.status, len(answer.read()))
connection.request("POST", "/", bytes(1_000_000))
answer = connection.getresponse()
print("http post:", answer.status, answer.read())
connection.close()
print("urllib:", len(urllib.request.urlopen(f"http://127.0.0.1:{port}/path", timeout=30).read()))
server.shutdown()

# ssl
folder = tempfile.mkdtemp()
subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
                folder + "/key", "-out", folder + "/cert", "-days", "1", "-subj", "/CN=localhost", "-addext",
                "subjectAltName=DNS:localhost"], check=True, stderr=subprocess.DEVNULL)
serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
serving.load_cert_chain(folder + "/cert", folder + "/key")
trusting = ssl.create_default_context(cafile=folder + "/cert")
waiting = listener()


def serve():
    with serving.wrap_socket(waiting.accept()[0], server_side=True) as sock:
        while data := sock.recv(100_000):
            sock.sendall(data)


thread = threading.Thread(target=serve)
thread.start()
with trusting.wrap_socket(socket.create_connection(waiting.getsockname(), 5), server_hostname="localhost") as sock:
    right = 0
    for size in 1, 100, 16384, 16385, 50_000:
        payload = os.urandom(size)
        sock.sendall(payload)
        right += receive_exactly(sock, size) == payload
    print("ssl:", sock.version(), right)
thread.join()
subprocess.run(["rm", "-r", folder], check=True)

# create_server, create_connection, has_dualstack_ipv6
with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    for host in "127.0.0.1", "::1":
        with socket.create_connection((host, server.getsockname()[1]), 5):
            print("create_server:", server.accept()[1][0])
print("dual stack:", socket.has_dualstack_ipv6())
print("resolver:", [a[4] for a in socket.getaddrinfo("localhost", 80, socket.AF_INET, socket.SOCK_STREAM)])
