"""Opens connections to itself and leaves them idle: idle_connections.py COUNT...

For each COUNT it prints `COUNT ready` when so many are open, and goes on when a line comes on
standard input. Both ends of every connection are held, so COUNT connections are 2 * COUNT sockets;
where a process may not have so many descriptors, several forked ones share the work. At the end
every connection must still carry what is written to it.
"""

import os
import resource
import socket
import sys

counts = [int(word) for word in sys.argv[1:]]
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
# Some descriptors are not sockets; a destination has no more than 28232 ephemeral ports.
per_worker = min((most - 200) // 2, 8000)


def exchange(sender, receiver, text):
    sender.sendall(text)
    assert receiver.recv(len(text)) == text


def work(orders, answers, port):
    """Each order is a number of connections to have; 0 is the end."""
    listener = socket.create_server(("127.0.0.1", port), backlog=4000)
    ends = []
    for order in orders:
        if int(order) == 0:
            break
        while len(ends) < int(order):
            client = socket.create_connection(listener.getsockname())
            server, _ = listener.accept()
            # A real connection has carried something.
            exchange(client, server, b"hello")
            exchange(server, client, b"welcome")
            ends.append((client, server))
        print("done", file=answers, flush=True)
    for number, (client, server) in enumerate(ends):
        exchange(client, server, b"%9d" % number)
        exchange(server, client, b"%9d" % number)
    print("alive", file=answers, flush=True)


workers = []
for number in range(-(-max(counts) // per_worker)):
    orders, tell = os.pipe()
    answers, answer = os.pipe()
    if os.fork() == 0:
        for _, other_tell, other_answers in workers:
            other_tell.close()
            other_answers.close()
        os.close(tell)
        os.close(answers)
        work(os.fdopen(orders), os.fdopen(answer, "w"), 80 + number)
        sys.exit()
    os.close(orders)
    os.close(answer)
    workers.append((number, os.fdopen(tell, "w"), os.fdopen(answers)))

for count in counts + [0]:
    for number, tell, answers in workers:
        share = min(max(count - number * per_worker, 0), per_worker)
        if count == 0 or share > 0:
            print(share, file=tell, flush=True)
            expected = "done" if count else "alive"
            assert answers.readline().strip() == expected
    if count:
        print(count, "ready", flush=True)
        sys.stdin.readline()
print("all alive", flush=True)
