"""sendfile, splice, tee and copy_file_range between files, pipes and sockets."""
import tempfile
from transcript import *

libc.splice.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
libc.tee.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint]
libc.sendfile.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
libc.copy_file_range.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
NONBLOCK, MORE = 2, 4
data = bytes(range(256)) * 1000
file = tempfile.TemporaryFile()
file.write(data)
file.flush()
fd = file.fileno()
left, right = pair()


def at():
    return os.lseek(fd, 0, os.SEEK_CUR)


def got(n):
    return receive_exactly(right, n)


def off(n):
    return ctypes.byref(ctypes.c_int64(n))


os.lseek(fd, 100, os.SEEK_SET)
show("from the position", os.sendfile, left.fileno(), fd, None, 50)
print(got(50) == data[100:150], at())
show("from an offset", os.sendfile, left.fileno(), fd, 1000, 60)
print(got(60) == data[1000:1060], at())
offset = ctypes.c_int64(500)
show("the offset moves", call, "sendfile", left.fileno(), fd, ctypes.byref(offset), 70)
print(offset.value, got(70) == data[500:570], at())
show("across the end", os.sendfile, left.fileno(), fd, len(data) - 10, 1000)
print(got(10) == data[-10:])
show("behind the end", os.sendfile, left.fileno(), fd, len(data) + 5, 10)
show("nothing", os.sendfile, left.fileno(), fd, 0, 0)
show("negative offset", call, "sendfile", left.fileno(), fd, off(-1), 10)
show("from a socket", call, "sendfile", left.fileno(), right.fileno(), None, 10)
pipe_out, pipe_in = os.pipe()
os.write(pipe_in, b"in a pipe")
show("from a pipe", call, "sendfile", left.fileno(), pipe_out, None, 4)
if mask_of(right, 50) & POLL["IN"]:
    print(right.recv(100))
show("from a pipe with an offset", call, "sendfile", left.fileno(), pipe_out, off(0), 4)
os.set_blocking(pipe_out, False)
outcome(os.read, pipe_out, 100)
os.set_blocking(pipe_out, True)
write_only = tempfile.NamedTemporaryFile()
only = os.open(write_only.name, os.O_WRONLY)
show("from a file for writing", call, "sendfile", left.fileno(), only, None, 4)
show("from a directory", call, "sendfile", left.fileno(), os.open("/", os.O_RDONLY), None, 4)
show("to an unconnected socket", call, "sendfile", (keep := socket.socket()).fileno(), fd, off(0), 4)
show("to a listener", call, "sendfile", (keep := listener()).fileno(), fd, off(0), 4)
show("from no descriptor", call, "sendfile", left.fileno(), 999, None, 4)
one, two = datagrams()
one.connect(two.getsockname())
show("to UDP", os.sendfile, one.fileno(), fd, 0, 100)
print(len(two.recv(1000)))

# splice.
show("pipe to socket", call, "splice", pipe_out, None, left.fileno(), None, 10, 0) if os.write(pipe_in, b"spliced") else None
print(got(7))
right.send(b"the other way")
settled(left, "IN")
show("socket to pipe", call, "splice", left.fileno(), None, pipe_in, None, 5, 0)
print(os.read(pipe_out, 100))
show("the rest", call, "splice", left.fileno(), None, pipe_in, None, 100, 0)
print(os.read(pipe_out, 100))
os.set_blocking(left.fileno(), False)
os.set_blocking(right.fileno(), False)
show("nothing there", call, "splice", left.fileno(), None, pipe_in, None, 100, NONBLOCK)
show("nothing in the pipe", call, "splice", pipe_out, None, left.fileno(), None, 100, NONBLOCK)
show("socket to socket", call, "splice", left.fileno(), None, right.fileno(), None, 100, NONBLOCK)
show("file to socket", call, "splice", fd, None, right.fileno(), None, 100, NONBLOCK)
show("socket to file", call, "splice", left.fileno(), None, fd, None, 100, NONBLOCK)
show("offset of a socket", call, "splice", left.fileno(), off(0), pipe_in, None, 100, NONBLOCK)
show("offset of a pipe", call, "splice", left.fileno(), None, pipe_in, off(0), 100, NONBLOCK)
show("wrong flags", call, "splice", left.fileno(), None, pipe_in, None, 100, 0x100)
show("no bytes", call, "splice", left.fileno(), None, pipe_in, None, 0, 0)
show("from a listener", call, "splice", (keep := listener()).fileno(), None, pipe_in, None, 10, NONBLOCK)
show("from an unconnected socket", call, "splice", (keep := socket.socket()).fileno(), None, pipe_in, None, 10, NONBLOCK)
os.write(pipe_in, b"abc")
show("to an unconnected socket", call, "splice", pipe_out, None, (keep := socket.socket()).fileno(), None, 10, NONBLOCK)
os.set_blocking(pipe_out, False)
outcome(os.read, pipe_out, 100)
os.set_blocking(pipe_out, True)
show("to UDP", call, "splice", pipe_out, None, one.fileno(), None, 10, 0) if os.write(pipe_in, b"to UDP") else None
print(two.recv(100) if mask_of(two, 100) else "nothing came")
two.connect(one.getsockname())
two.send(b"from UDP")
settled(one, "IN")
show("from UDP", call, "splice", one.fileno(), None, pipe_in, None, 10, NONBLOCK)
show("tee of a socket", call, "tee", left.fileno(), pipe_in, 10, NONBLOCK)
show("tee into a socket", call, "tee", pipe_out, left.fileno(), 10, NONBLOCK)
show("copy_file_range into a socket", call, "copy_file_range", fd, off(0), left.fileno(), None, 10, 0)
show("copy_file_range from a socket", call, "copy_file_range", left.fileno(), None, fd, None, 10, 0)
os.set_blocking(left.fileno(), True)
right.shutdown(socket.SHUT_WR)
settled(left, "RDHUP")
show("after the end", call, "splice", left.fileno(), None, pipe_in, None, 10, 0)
left.close()
right.close()
left, right = pair()
left.shutdown(socket.SHUT_WR)
signal.signal(signal.SIGPIPE, lambda *_: print("SIGPIPE"))
show("sendfile after shutdown", call, "sendfile", left.fileno(), fd, off(0), 10)
os.write(pipe_in, b"lost")
show("splice after shutdown", call, "splice", pipe_out, None, left.fileno(), None, 10, 0)
