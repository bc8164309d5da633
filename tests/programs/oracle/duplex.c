/* Both directions of one connection at once, each with a thread of its own at either end, in pieces of
   random size, by every way to send and receive: what arrives is what was sent. */
#include "transcript.h"
#include <stdint.h>
#include <sys/sendfile.h>

enum { BYTES = 6 << 20, PIECE = 40000 };

static int file = -1;

struct side {
    int fd;
    unsigned seed;
    int fault;
    uint64_t at;
};

static unsigned char byte_at(uint64_t at, unsigned seed) {
    uint64_t x = (at >> 3) * 0x9e3779b97f4a7c15u + seed;
    return (x ^ x >> 29) >> (at & 7) * 8;
}

static void fill(unsigned char *to, uint64_t at, long n, unsigned seed) {
    for (long i = 0; i < n; i++) to[i] = byte_at(at + i, seed);
}

static long send_piece(struct side *side, unsigned char *bytes, long n, unsigned how) {
    int half = n / 2;
    struct iovec parts[2] = {{bytes, half}, {bytes + half, n - half}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    switch (how % 6) {
    case 0: return write(side->fd, bytes, n);
    case 1: return writev(side->fd, parts, 2);
    case 2: return sendmsg(side->fd, &message, 0);
    case 3: return send(side->fd, bytes, n, MSG_DONTWAIT);
    case 4: {
        /* The file has the stream of every seed, one after another. */
        off_t from = (off_t)side->seed * BYTES + side->at;
        return sendfile(side->fd, file, &from, n);
    }
    default: return send(side->fd, bytes, n, how % 12 < 6 ? MSG_MORE : 0);
    }
}

static void *send_all(void *arg) {
    struct side *side = arg;
    unsigned char bytes[PIECE];
    unsigned seed = side->seed + 100;
    while (side->at < BYTES) {
        long n = 1 + rand_r(&seed) % (rand_r(&seed) % 8 ? 2000 : PIECE);
        if (n > (long)(BYTES - side->at)) n = BYTES - side->at;
        fill(bytes, side->at, n, side->seed);
        long sent = send_piece(side, bytes, n, rand_r(&seed));
        memset(bytes, 0xee, n); /* What was sent is the receiver's: our buffer does not matter any more. */
        if (sent < 0 && errno == EAGAIN) {
            struct pollfd p = {side->fd, POLLOUT, 0};
            if (poll(&p, 1, 5000) == 1) continue;
        }
        if (sent <= 0) {
            side->fault = errno;
            break;
        }
        side->at += sent;
    }
    shutdown(side->fd, SHUT_WR);
    return NULL;
}

static void *receive_all(void *arg) {
    struct side *side = arg;
    unsigned char bytes[PIECE], peeked[PIECE];
    unsigned seed = side->seed + 200;
    while (!side->fault) {
        long want = 1 + rand_r(&seed) % (rand_r(&seed) % 8 ? 3000 : PIECE), n;
        int half = want / 2;
        struct iovec parts[2] = {{bytes, half}, {bytes + half, want - half}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        long seen = -1;
        switch (rand_r(&seed) % 5) {
        case 0: n = read(side->fd, bytes, want); break;
        case 1: n = readv(side->fd, parts, 2); break;
        case 2: n = recvmsg(side->fd, &message, 0); break;
        case 3: n = recv(side->fd, bytes, want, MSG_WAITALL); break;
        default:
            seen = recv(side->fd, peeked, want, MSG_PEEK);
            n = recv(side->fd, bytes, want, 0);
        }
        if (n < 0 && errno == EAGAIN) {
            struct pollfd p = {side->fd, POLLIN, 0};
            if (poll(&p, 1, 5000) == 1) continue;
        }
        if (n < 0) side->fault = errno;
        if (n <= 0) break;
        if (seen > n || (seen > 0 && memcmp(peeked, bytes, seen) != 0)) side->fault = 1000;
        for (long i = 0; i < n && !side->fault; i++)
            if (bytes[i] != byte_at(side->at + i, side->seed)) side->fault = 2000;
        side->at += n;
    }
    return NULL;
}

static void round_of(int number) {
    int ends[2], extra = number % 2;
    pair(ends);
    if (number % 4 >= 2) {
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
        fcntl(ends[1], F_SETFL, O_NONBLOCK);
    }
    if (extra) {
        int size = 100000;
        setsockopt(ends[number & 1], SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
        setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &extra, sizeof extra);
    }
    struct side sides[4] = {
        {.fd = ends[0], .seed = 0}, {.fd = ends[1], .seed = 0}, {.fd = ends[1], .seed = 1}, {.fd = ends[0], .seed = 1}};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, i % 2 ? receive_all : send_all, &sides[i]);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    printf("round %d:", number);
    for (int i = 0; i < 4; i++) printf(" %lu%s", (long)sides[i].at, sides[i].fault ? "!" : "");
    printf("\n");
    for (int i = 0; i < 4; i++)
        if (sides[i].fault) printf("side %d: fault %d\n", i, sides[i].fault);
    close(ends[0]);
    close(ends[1]);
}

int main(void) {
    begin();
    char name[] = "/tmp/duplex-XXXXXX";
    file = must(mkstemp(name));
    unlink(name);
    static unsigned char bytes[1 << 16];
    for (unsigned seed = 0; seed < 2; seed++)
        for (uint64_t at = 0; at < BYTES; at += sizeof bytes) {
            fill(bytes, at, sizeof bytes, seed);
            must(write(file, bytes, sizeof bytes));
        }
    for (int i = 0; i < 8; i++) round_of(i);
    return 0;
}
