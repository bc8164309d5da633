"""A pool of processes: connections go to them by Pipe, and to a program as its standard input."""
import multiprocessing
import socket
import subprocess
from multiprocessing.reduction import recv_handle, send_handle


def worker(pipe):
    connection = socket.socket(fileno=recv_handle(pipe))
    connection.sendall(connection.recv(100).upper())
    connection.close()


def connect(listener):
    client = socket.create_connection(listener.getsockname())
    return client, listener.accept()[0]


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    for method in ["fork", "spawn", "forkserver"]:
        context = multiprocessing.get_context(method)
        ours, theirs = context.Pipe()
        process = context.Process(target=worker, args=(theirs,))
        process.start()
        client, server = connect(listener)
        send_handle(ours, server.fileno(), process.pid)
        server.close()
        client.sendall(b"by pipe")
        print(method, client.recv(100).decode(), client.recv(100) == b"")
        process.join()
    client, server = connect(listener)
    child = subprocess.Popen(["sh", "-c", "read line; echo heard $line >&0"], stdin=server)
    server.close()
    client.sendall(b"a line\n")
    print(client.recv(100).decode().strip(), client.recv(100) == b"")
    print(child.wait())
