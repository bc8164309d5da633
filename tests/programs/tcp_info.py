"""One end of an exchange, which prints its TCP_INFO after each step.

Usage: tcp_info.py server|client HOST PATH. Files that begin with PATH keep both ends in step.
"""

import errno
import os
import socket
import struct
import sys
import time

PORT = 7960
# Name and format of each field of Linux's struct tcp_info, in order.
FIELDS = (
    "state:B ca_state:B retransmits:B probes:B backoff:B options:B wscale:B flags:B rto:I ato:I "
    "snd_mss:I rcv_mss:I unacked:I sacked:I lost:I retrans:I fackets:I last_data_sent:I "
    "last_ack_sent:I last_data_recv:I last_ack_recv:I pmtu:I rcv_ssthresh:I rtt:I rttvar:I "
    "snd_ssthresh:I snd_cwnd:I advmss:I reordering:I rcv_rtt:I rcv_space:I total_retrans:I "
    "pacing_rate:Q max_pacing_rate:Q bytes_acked:Q bytes_received:Q segs_out:I segs_in:I "
    "notsent_bytes:I min_rtt:I data_segs_in:I data_segs_out:I delivery_rate:Q busy_time:Q "
    "rwnd_limited:Q sndbuf_limited:Q delivered:I delivered_ce:I bytes_sent:Q bytes_retrans:Q "
    "dsack_dups:I reord_seen:I rcv_ooopack:I snd_wnd:I rcv_wnd:I rehash:I total_rto:H "
    "total_rto_recoveries:H total_rto_time:I"
).split()
NAMES = [field[:-2] for field in FIELDS]
LAYOUT = "=" + "".join(field[-1] for field in FIELDS)

role, host, path = sys.argv[1:]
meetings = 0


def info(s):
    size = struct.calcsize(LAYOUT)
    raw = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    return dict(zip(NAMES, struct.unpack(LAYOUT, raw.ljust(size, b"\0"))))


def show(step, s):
    for name, value in info(s).items():
        print(step, name, value)


def meet():
    """Waits until the peer has come as far as this end."""
    global meetings
    meetings += 1
    other = "client" if role == "server" else "server"
    open(f"{path}-{role}-{meetings}", "w").close()
    while not os.path.exists(f"{path}-{other}-{meetings}"):
        time.sleep(0.01)


def settle(step, s):
    """Shows the state of this end when everything is acknowledged, and nothing is on its way."""
    meet()
    while info(s)["unacked"]:
        time.sleep(0.01)
    meet()
    show(step, s)
    meet()


def read(s, n):
    while n:
        got = s.recv(n)
        assert got, "the peer has closed"
        n -= len(got)


def insist(call):
    """Repeats a call until the stack may use its address (duplicate address detection)."""
    while True:
        try:
            return call()
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.ENETUNREACH):
                raise
            time.sleep(0.1)


def exchange(s):
    settle("established", s)
    for step, asked, answered in ("bytes", 1, 1), ("segments", 3000, 10000), ("request", 100, 100):
        if role == "server":
            read(s, asked)
            s.sendall(bytes(answered))
        else:
            s.sendall(bytes(asked))
            read(s, answered)
        settle(step, s)


def server(family):
    listener = insist(lambda: socket.create_server((host, PORT), family=family, backlog=7))
    show("listening", listener)
    meet()
    s = listener.accept()[0]
    exchange(s)
    assert s.recv(1) == b""
    meet()
    show("closed-by-peer", s)
    meet()


def client(family):
    s = socket.socket(family)
    show("unconnected", s)
    meet()
    insist(lambda: s.connect((host, PORT)))
    exchange(s)
    s.shutdown(socket.SHUT_WR)
    while info(s)["unacked"]:
        time.sleep(0.01)
    meet()
    show("closing", s)
    meet()
    assert s.recv(1) == b""


{"server": server, "client": client}[role](socket.AF_INET6 if ":" in host else socket.AF_INET)
