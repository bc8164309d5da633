"""poll and select: sets, timeouts, and descriptors of every kind together."""
import threading
from transcript import *

client, server = pair()
print("fresh connection:", events(mask_of(client)))
print("select:", [len(s) for s in select.select([client], [client], [client], 0)])
server.send(b"x")
print("readable:", settled(client, "IN"))
print("select:", [len(s) for s in select.select([client], [client], [client], 30)])
client.recv(1)
start = time.monotonic()
print("select waits:", select.select([client], [], [], 0.2), 0.15 < (took := time.monotonic() - start), in_time(took, 1))
start = time.monotonic()
poll = select.poll()
poll.register(client, select.POLLIN)
print("poll waits:", poll.poll(200), 0.15 < (took := time.monotonic() - start), in_time(took, 1))
poll.modify(client, 0)
print("poll for nothing:", poll.poll(0))

read, write = os.pipe()
eventfd = os.eventfd(0, os.EFD_NONBLOCK)
udp, udp_sender = datagrams()
waiting = listener()
everything = {"socket": client, "pipe": read, "eventfd": eventfd, "udp": udp, "listener": waiting}


def who():
    by_number = {(s if isinstance(s, int) else s.fileno()): name for name, s in everything.items()}
    poll = select.poll()
    for number in by_number:
        poll.register(number, select.POLLIN)
    ready = [by_number[n] for n, _ in poll.poll(30_000)]
    chosen, _, _ = select.select(list(everything.values()), [], [], 30)
    chosen = [name for name, s in everything.items() if s in chosen]
    return sorted(ready), sorted(chosen)


def soon(action, *args):
    timer = threading.Timer(0.1, action, args)
    timer.start()
    return timer


soon(server.send, b"x").join
print("woken by the socket:", who())
client.recv(1)
soon(os.write, write, b"x")
print("woken by the pipe:", who())
os.read(read, 1)
soon(os.eventfd_write, eventfd, 1)
print("woken by the eventfd:", who())
os.eventfd_read(eventfd)
soon(udp_sender.sendto, b"", udp.getsockname())
print("woken by udp:", who())
udp.recv(1)
late = socket.socket()
soon(late.connect, waiting.getsockname())
print("woken by the listener:", who())
os.write(write, b"x")
server.send(b"x")
settled(client, "IN")
print("three at once:", who())

number = client.fileno()
poll = select.poll()
poll.register(number, select.POLLIN)
poll.register(999, select.POLLIN)
print("a closed number:", sorted((n == number, m) for n, m in poll.poll(1000)))
closed = os.dup(number)
os.close(closed)
show("select with a closed number", select.select, [closed], [], [], 0)
libc.poll.argtypes = [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int]
entry = struct.pack("ihh", -5, 1, 77)
buffer = ctypes.create_string_buffer(entry, len(entry))
show("a negative number is skipped", call, "poll", buffer, 1, 0)
print("its revents:", struct.unpack("ihh", buffer.raw)[2])
two = ctypes.create_string_buffer(struct.pack("ihhihh", number, 1, 0, number, 4, 0), 16)
show("twice in one set", call, "poll", two, 2, 1000)
print("both:", struct.unpack("ihhihh", two.raw)[2::3])

# Another thread closes the peer, or makes room.
client, server = pair()
soon(server.close)
print("the end wakes:", select.select([client], [], [], 30)[0] == [client])
client, server = pair()
fill(client)
print("full:", select.select([], [client], [], 0.1)[1])
soon(receive_exactly, server, 4 << 10)
thread = threading.Thread(target=receive_all, args=(server,))
thread.start()
print("room wakes:", select.select([], [client], [], 30)[1] == [client])
client.close()
thread.join()
