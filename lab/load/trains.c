/*
 * Datagrams one way between two processes, alone or in trains (UDP_SEGMENT, UDP_GRO), and the
 * processor time of both.
 *
 *   cc -O2 -o trains lab/load/trains.c
 *   trains SIZE COUNT SECONDS           both here, over loopback
 *   trains SIZE COUNT SECONDS to HOST   the sender alone, to port 5201
 *   trains SIZE COUNT SECONDS from      the receiver alone; it ends two seconds after the last one
 *
 * COUNT datagrams of SIZE bytes go in each call: with 1, each goes in a call of its own, and the
 * receiver does not ask for trains.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PORT 5201
#define UDP_SEGMENT 103
#define UDP_GRO 104

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static double used(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void set(int fd, int level, int name, int value, const char *what) {
    if (setsockopt(fd, level, name, &value, sizeof value)) fail(what);
}

static void send_all(const char *host, int size, int count, double seconds) {
    static char bytes[65536];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    long calls = 0, failed = 0;
    inet_pton(AF_INET, host, &to.sin_addr);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
    if (count > 1) set(fd, IPPROTO_UDP, UDP_SEGMENT, size, "UDP_SEGMENT");
    double began = now(), end = began + seconds;
    while (now() < end)
        for (int i = 0; i < 32; i++, calls++)
            if (send(fd, bytes, (size_t)size * count, 0) < 0) failed++;
    double time = now() - began;
    printf("sent     %9.0f datagrams/s %8.1f MB/s  CPU %3.0f %%  (%ld calls failed)\n",
           (calls - failed) * count / time, (calls - failed) * (double)count * size / time / 1e6,
           100 * used() / time, failed);
}

static void receive_all(int size, int count) {
    static char bytes[65536];
    char control[256];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    struct timeval patience = {.tv_sec = 2};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    long datagrams = 0, calls = 0, total = 0;
    double began = 0, last = 0;
    if (bind(fd, (struct sockaddr *)&at, sizeof at)) fail("bind");
    set(fd, SOL_SOCKET, SO_RCVBUF, 4 << 20, "SO_RCVBUF");
    if (count > 1) set(fd, IPPROTO_UDP, UDP_GRO, 1, "UDP_GRO");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience)) fail("SO_RCVTIMEO");
    for (;;) {
        struct iovec part = {bytes, sizeof bytes};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                                 .msg_controllen = sizeof control};
        ssize_t len = recvmsg(fd, &message, 0);
        if (len < 0) {
            if (calls) break;
            continue;
        }
        int each = len;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
            if (c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO)
                memcpy(&each, CMSG_DATA(c), sizeof each);
        if (!calls++) began = now();
        if (calls % 64 == 0) last = now();
        datagrams += each ? (len + each - 1) / each : 1;
        total += len;
    }
    (void)size;
    double time = last - began;
    printf("received %9.0f datagrams/s %8.1f MB/s  CPU %3.0f %%  (%.1f a call)\n", datagrams / time,
           total / time / 1e6, 100 * used() / time, (double)datagrams / calls);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "trains SIZE COUNT SECONDS [to HOST | from]\n");
        return 2;
    }
    int size = atoi(argv[1]), count = atoi(argv[2]);
    double seconds = atof(argv[3]);
    if (argc > 5) {
        send_all(argv[5], size, count, seconds);
    } else if (argc > 4) {
        receive_all(size, count);
    } else {
        pid_t receiver = fork();
        if (!receiver) {
            receive_all(size, count);
            fflush(stdout);
            _exit(0);
        }
        usleep(200000);
        send_all("127.0.0.1", size, count, seconds);
        waitpid(receiver, NULL, 0);
    }
    return 0;
}
