"""A nameserver at the first address, with a name for each thing that may go wrong. At further ones
are servers that say nothing by UDP, and with `!` in front of the address those that fail."""
import socket
import struct
import sys
import threading


def wire(name):
    return b''.join(bytes([len(l)]) + l.encode() for l in name.split('.') if l) + b'\0'


A, CNAME, SOA, MX, TXT, AAAA, SRV, SSHFP = 1, 5, 6, 15, 16, 28, 33, 44
ZONE = {
    'name.example': {
        A: [bytes([192, 0, 2, 7]), bytes([192, 0, 2, 8])],
        AAAA: [bytes.fromhex('20010db8') + bytes(11) + b'\7'],
        MX: [struct.pack('>H', 10) + wire('mail.example'), struct.pack('>H', 20) + b'\xc0\x0c'],
        TXT: [b'\5hello\7goodbye', b'\0'],
        SSHFP: [b'\4\2' + bytes(range(32))],
    },
    '_sip._tcp.name.example': {SRV: [struct.pack('>HHH', 1, 2, 5060) + wire('name.example')]},
    'alias.example': {CNAME: [wire('name.example')]},
    'a.search.example': {A: [bytes([192, 0, 2, 9])]},
    'a.b.second.example': {A: [bytes([192, 0, 2, 10])]},
    'top': {A: [bytes([192, 0, 2, 11])]},
    'big.example': {A: [bytes([198, 51, 100, n]) for n in range(60)]},
    'cut.example': {A: [bytes([198, 51, 100, n]) for n in range(9)]},
    'x.y\\z.example': {A: [bytes([192, 0, 2, 12])]},
    'empty.example': {},
    'empty.search.example': {},
    'referral.example': {},
}
FAILURES = {'formerr': 1, 'servfail': 2, 'notimp': 4, 'refused': 5, 'yxdomain': 6}


def records(name, kind):
    have = ZONE.get(name, {})
    if kind != CNAME and CNAME in have:
        return [(CNAME, have[CNAME][0])] + [r for d in have[CNAME] for r in records('name.example', kind)]
    return [(kind, d) for d in have.get(kind, [])]


def answer(q, udp):
    end, labels = q.index(b'\0', 12) + 5, []
    at = 12
    while q[at]:
        labels.append(q[at + 1:at + 1 + q[at]].decode('latin1'))
        at += q[at] + 1
    name, kind = '.'.join(labels).lower(), struct.unpack('>H', q[end - 4:end - 2])[0]
    first = name.split('.')[0]
    code = FAILURES.get(first, 0 if name in ZONE else 3)
    found = records(name, kind)
    if first == 'echo':
        # The question as it came, without its identifier.
        code, found = 0, [(TXT, bytes([len(q) - 2]) + q[2:])]
    if name == 'edns.example' and q[11]:
        # A server that does not know EDNS(0).
        return q[:2] + struct.pack('>HHHHH', 0x8181, 0, 0, 0, 0)
    if name == 'edns.example':
        code, found = 0, [(A, bytes([192, 0, 2, 13]))]
    body = b''.join(b'\xc0\x0c' + struct.pack('>HHIH', k, 1, 60, len(d)) + d for k, d in found)
    flags, count, authorities = 0x81a0 | code, len(found), 0
    if name == 'referral.example':
        flags = 0x8000
    elif code == 3:
        soa = wire('ns.example') + wire('root.example') + struct.pack('>5I', 1, 2, 3, 4, 5)
        body += wire('example') + struct.pack('>HHIH', SOA, 1, 60, len(soa)) + soa
        authorities = 1
    if udp and (len(body) > 900 or name == 'cut.example'):
        flags, count, body = flags | 0x200, 1, body[:16]
    return q[:2] + struct.pack('>HHHHH', flags, 1, count, authorities, 0) + q[12:end] + body


def serve(c):
    f = c.makefile('rb')
    while head := f.read(2):
        a = answer(f.read(struct.unpack('>H', head)[0]), False)
        c.sendall(struct.pack('>H', len(a)) + a)


def family(address):
    return socket.AF_INET6 if ':' in address else socket.AF_INET


def datagrams(address):
    u = socket.socket(family(address), socket.SOCK_DGRAM)
    u.bind((address, 53))
    return u


def tcp(address):
    t = socket.create_server((address, 53), family=family(address))
    while True:
        threading.Thread(target=serve, args=t.accept()[:1], daemon=True).start()


def silent(address):
    """Nothing by UDP but answers that nobody asked for; by TCP as others."""
    u = datagrams(address)
    while True:
        q, a = u.recvfrom(4096)
        u.sendto(bytes([q[0] ^ 255, q[1], 0x81, 0x80]) + q[4:], a)


def failing(address):
    u = datagrams(address)
    while True:
        q, a = u.recvfrom(4096)
        u.sendto(q[:2] + struct.pack('>HHHHH', 0x8182, 1, 0, 0, 0) + q[12:], a)


def main():
    first, *others = sys.argv[1:]
    for other in others:
        kind = failing if other.startswith('!') else silent
        threading.Thread(target=kind, args=(other.lstrip('!'),), daemon=True).start()
        if kind == silent:
            threading.Thread(target=tcp, args=(other,), daemon=True).start()
    u = datagrams(first)
    threading.Thread(target=tcp, args=(first,), daemon=True).start()
    while True:
        q, a = u.recvfrom(4096)
        if b'mute' in q or len(q) < 17:
            continue
        # A stranger's identifier first, then another question: nobody takes them.
        u.sendto(bytes([q[0] ^ 255]) + answer(q, True)[1:], a)
        u.sendto(q[:2] + b'\x81\x80' + q[4:12] + b'\5other' + q[12:], a)
        u.sendto(answer(q, True), a)


main()
