/* ppoll, pselect, select and poll in their corners, and waits that outlive what they wait for. */
#include "transcript.h"
#include <sys/eventfd.h>
#include <sys/resource.h>

static int ends[2];

static void *send_soon(void *unused) {
    (void)unused;
    nap(100);
    must(send(ends[1], "x", 1, 0));
    return NULL;
}

static void *close_soon(void *unused) {
    (void)unused;
    nap(100);
    close(ends[1]);
    return NULL;
}

static void with(const char *name, void *(*action)(void *), int timeout) {
    pthread_t thread;
    pthread_create(&thread, NULL, action, NULL);
    struct pollfd p = {.fd = ends[0], .events = POLLIN};
    int n = poll(&p, 1, timeout);
    printf("%s: %d %x\n", name, n, p.revents);
    pthread_join(thread, NULL);
}

int main(void) {
    begin();
    char buffer[16];
    pair(ends);
    with("poll without end", send_soon, -1);
    recv(ends[0], buffer, 16, 0);
    with("poll with a timeout", send_soon, 30000);
    recv(ends[0], buffer, 16, 0);
    with("poll, any negative timeout", send_soon, -77);
    recv(ends[0], buffer, 16, 0);

    struct pollfd p[3] = {{ends[0], POLLIN, 0}, {-1, POLLIN, 9}, {ends[0], POLLOUT | POLLRDNORM | POLLWRNORM, 0}};
    show("poll", poll(p, 3, 0));
    printf("%x %x %x\n", p[0].revents, p[1].revents, p[2].revents);
    must(send(ends[1], "x", 1, 0));
    settled(ends[0], POLLIN);
    p[0].events = POLLRDNORM;
    show("poll, normal", poll(p, 3, 0));
    printf("%x %x %x\n", p[0].revents, p[1].revents, p[2].revents);
    recv(ends[0], buffer, 16, 0);
    show("poll of nothing", poll(NULL, 0, 10));
    volatile nfds_t too_many = 1u << 30;
    show("poll of too many", poll(p, too_many, 0));

    struct timespec bad = {0, 2000000000}, short_time = {0, 50000000}, none = {0, 0};
    show("ppoll, bad time", ppoll(p, 1, &bad, NULL));
    show("ppoll", ppoll(p, 1, &short_time, NULL));
    fd_set in, out, except;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&except);
    FD_SET(ends[0], &in);
    FD_SET(ends[0], &out);
    FD_SET(ends[0], &except);
    show("select, three sets", select(ends[0] + 1, &in, &out, &except, NULL));
    printf("%d %d %d\n", FD_ISSET(ends[0], &in) != 0, FD_ISSET(ends[0], &out) != 0, FD_ISSET(ends[0], &except) != 0);
    FD_SET(ends[0], &out);
    show("select, number beyond the count", select(ends[0], NULL, &out, NULL, &(struct timeval){0, 0}));
    show("select, negative count", select(-1, NULL, NULL, NULL, &(struct timeval){0, 0}));
    show("select, negative time", select(0, NULL, NULL, NULL, &(struct timeval){-1, 0}));
    struct timeval left = {20, 0};
    must(send(ends[1], "x", 1, 0));
    FD_ZERO(&in);
    FD_SET(ends[0], &in);
    show("select", select(ends[0] + 1, &in, NULL, NULL, &left));
    printf("time left is told: %d\n", left.tv_sec < 20);
    show("pselect", pselect(ends[0] + 1, &in, NULL, NULL, &none, NULL));
    recv(ends[0], buffer, 16, 0);
    FD_ZERO(&in);
    FD_SET(ends[0], &in);
    show("pselect, nothing", pselect(ends[0] + 1, &in, NULL, NULL, &short_time, NULL));
    printf("cleared: %d\n", FD_ISSET(ends[0], &in) == 0);

    /* epoll: what poll says of it, packed data, many events. */
    int ep = must(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x1122334455667788};
    must(epoll_ctl(ep, EPOLL_CTL_ADD, ends[0], &event));
    must(send(ends[1], "x", 1, 0));
    struct epoll_event got[4];
    show("epoll_wait", epoll_wait(ep, got, 4, 30000));
    printf("%x %lx\n", got[0].events, (long)got[0].data.u64);
    struct pollfd on_epoll = {ep, POLLIN, 0};
    show("poll on the epoll", poll(&on_epoll, 1, 1000));
    show("epoll_create, no size", epoll_create(0));
    show("epoll_create1, bad flags", epoll_create1(7));
    show("epoll_pwait2", epoll_pwait2(ep, got, 4, &short_time, NULL));
    show("delete needs no event", epoll_ctl(ep, EPOLL_CTL_DEL, ends[0], NULL));
    show("after it", epoll_wait(ep, got, 4, 0));
    recv(ends[0], buffer, 16, 0);

    /* The same connection by two numbers in one epoll. */
    int copy = must(dup(ends[0]));
    event.data.u64 = 1;
    must(epoll_ctl(ep, EPOLL_CTL_ADD, ends[0], &event));
    event.data.u64 = 2;
    must(epoll_ctl(ep, EPOLL_CTL_ADD, copy, &event));
    must(send(ends[1], "x", 1, 0));
    settled(ends[0], POLLIN);
    int n = epoll_wait(ep, got, 4, 1000);
    printf("two numbers: %d events, sum %lu\n", n, (long)(got[0].data.u64 + got[1].data.u64));
    must(epoll_ctl(ep, EPOLL_CTL_DEL, copy, NULL));
    show("one of them", epoll_wait(ep, got, 4, 1000));
    must(epoll_ctl(ep, EPOLL_CTL_DEL, ends[0], NULL));
    close(copy);
    recv(ends[0], buffer, 16, 0);

    with("the end wakes", close_soon, -1);
    show("recv", recv(ends[0], buffer, 16, 0));
    pair(ends);
    event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
    must(epoll_ctl(ep, EPOLL_CTL_ADD, ends[0], &event));
    pthread_t thread;
    pthread_create(&thread, NULL, close_soon, NULL);
    show("the end wakes epoll", epoll_wait(ep, got, 4, 30000));
    printf("%x\n", got[0].events);
    pthread_join(thread, NULL);

    /* A socket with a number above FD_SETSIZE. */
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max < 8192 ? limit.rlim_max : 8192;
    setrlimit(RLIMIT_NOFILE, &limit);
    pair(ends);
    int high = must(fcntl(ends[0], F_DUPFD, 3000));
    must(send(ends[1], "high", 4, 0));
    struct pollfd h = {high, POLLIN, 0};
    show("a high number", poll(&h, 1, 30000));
    show("recv", recv(high, buffer, 16, 0));
    return 0;
}
