/* What the oracle programs in C share: see transcript.py. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Prints what a call returned, or the name of its errno. */
#define show(name, call)                                         \
    do {                                                         \
        errno = 0;                                               \
        long value_ = (long)(call);                              \
        if (value_ == -1) printf("%s: %s\n", name, strerrorname_np(errno)); \
        else printf("%s: %ld\n", name, value_);                  \
    } while (0)

/* A call without which nothing else makes sense. */
#define must(call)                                               \
    ({                                                           \
        long value_ = (long)(call);                              \
        if (value_ == -1) {                                      \
            printf("line %d: %s\n", __LINE__, strerrorname_np(errno)); \
            exit(1);                                             \
        }                                                        \
        value_;                                                  \
    })

static void begin(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(50); /* A hang ends the program; what it said so far tells where. */
}

static struct sockaddr_in loopback(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

static struct sockaddr_in name_of(int fd) {
    struct sockaddr_in address;
    socklen_t len = sizeof address;
    must(getsockname(fd, (struct sockaddr *)&address, &len));
    return address;
}

static int bound(int type) {
    int fd = must(socket(AF_INET, type, 0));
    struct sockaddr_in address = loopback(0);
    must(bind(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}

static int listener(int backlog) {
    int fd = bound(SOCK_STREAM);
    must(listen(fd, backlog));
    return fd;
}

static int connected(int to) {
    int fd = must(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in address = name_of(to);
    must(connect(fd, (struct sockaddr *)&address, sizeof address));
    return fd;
}

/* A connection: the end that connected, the end that was accepted. */
static void pair(int ends[2]) {
    int fd = listener(4);
    ends[0] = connected(fd);
    ends[1] = must(accept(fd, NULL, NULL));
    close(fd);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void nap(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&t, &t) == -1 && errno == EINTR) {}
}

/* Whether it took no longer, where that is judged: on a machine that has nothing else to do. */
static int in_time(double took, double most) {
    return took < most || !getenv("TOWPATH_JUDGE_TIME");
}

/* Waits until poll reports the wanted bits at least; returns everything that it reports. */
static int settled(int fd, int wanted) {
    double end = now() + 30;
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLPRI | POLLOUT | POLLRDHUP};
    while (poll(&p, 1, 0) >= 0 && (p.revents & wanted) != wanted && now() < end) nap(2);
    return p.revents;
}

/* Not every program uses every one of them. */
static void *const used[] __attribute__((unused)) = {begin, bound, listener, connected, pair, nap, settled,
                                                    in_time};
