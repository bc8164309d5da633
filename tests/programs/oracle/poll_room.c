/* Whoever is told that there is room to send can send: otherwise event loops would spin. */
#include "transcript.h"

enum { TOTAL = 24 << 20 };

static char payload[1 << 16];

static void *read_slowly(void *at) {
    int fd = *(int *)at;
    static char buffer[1 << 16];
    long total = 0;
    unsigned seed = 7;
    while (total < TOTAL) {
        long n = recv(fd, buffer, 1 + rand_r(&seed) % sizeof buffer, 0);
        if (n <= 0) break;
        total += n;
        if (rand_r(&seed) % 64 == 0) nap(1);
    }
    return (void *)total;
}

/* How often a send found no room though the wait said so. */
static long stream(int use_epoll, size_t most) {
    int ends[2];
    pair(ends);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    pthread_t thread;
    pthread_create(&thread, NULL, read_slowly, &ends[1]);
    int ep = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLOUT};
    must(epoll_ctl(ep, EPOLL_CTL_ADD, ends[0], &event));
    struct pollfd p = {ends[0], POLLOUT, 0};
    long refused = 0, total = 0;
    unsigned seed = 1;
    while (total < TOTAL) {
        int ready = use_epoll ? epoll_wait(ep, &event, 1, 5000) : poll(&p, 1, 5000);
        if (ready != 1) {
            printf("no room for 5 s\n");
            break;
        }
        size_t len = 1 + rand_r(&seed) % most;
        if (len > (size_t)(TOTAL - total)) len = TOTAL - total;
        long n = send(ends[0], payload, len, 0);
        if (n < 0) refused++;
        else total += n;
    }
    void *received;
    pthread_join(thread, &received);
    close(ep);
    close(ends[0]);
    close(ends[1]);
    return total == (long)received ? refused : -1;
}

static long datagrams(int sndbuf, size_t len) {
    int from = bound(SOCK_DGRAM), to = bound(SOCK_DGRAM);
    struct sockaddr_in name = name_of(to);
    must(connect(from, (struct sockaddr *)&name, sizeof name));
    if (sndbuf) must(setsockopt(from, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof sndbuf));
    fcntl(from, F_SETFL, O_NONBLOCK);
    long refused = 0;
    struct pollfd p = {from, POLLOUT, 0};
    for (int i = 0; i < 3000; i++) {
        if (poll(&p, 1, 5000) != 1) return -1;
        if (send(from, payload, len, 0) < 0) refused++;
    }
    close(from);
    close(to);
    return refused;
}

int main(void) {
    begin();
    printf("poll, small: %ld\n", stream(0, 3000));
    printf("poll, large: %ld\n", stream(0, sizeof payload));
    printf("epoll, small: %ld\n", stream(1, 3000));
    printf("epoll, large: %ld\n", stream(1, sizeof payload));
    printf("datagrams: %ld\n", datagrams(0, 1000));
    printf("long datagrams: %ld\n", datagrams(0, 60000));
    printf("a small buffer: %ld\n", datagrams(2304, 2000));
    return 0;
}
