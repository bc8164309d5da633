/* Signals in blocking calls: EINTR, restart, and bytes that were moved before. */
#include "transcript.h"
#include <sys/time.h>

static volatile sig_atomic_t hit;
/* Calls, or more than one, that signals came in. */
static int count;
static timer_t timer;

static void on_signal(int number) {
    (void)number;
    hit = 1;
}

static void set_timer(int ms) {
    struct timespec time = {0, ms * 1000000L};
    struct itimerspec in = {time, time};
    must(timer_settime(timer, 0, &in, NULL));
}

/* Signals from 100 ms on, with or without SA_RESTART. One alone might come before the call that it is to interrupt. */
static void soon(int flags) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = flags};
    sigaction(SIGUSR1, &action, NULL);
    set_timer(100);
}

/* No more of them. */
static void quiet(void) {
    int before = errno;
    set_timer(0);
    count += hit;
    hit = 0;
    errno = before;
}

/* Prints what a call returned, or the name of its errno, that signals came in. */
#define show_struck(name, flags, call)          \
    do {                                        \
        soon(flags);                            \
        errno = 0;                              \
        long struck_ = (long)(call);            \
        quiet();                                \
        if (struck_ == -1) printf("%s: %s\n", name, strerrorname_np(errno)); \
        else printf("%s: %ld\n", name, struck_); \
    } while (0)

static int peer;

static void *send_later(void *text) {
    nap(300);
    must(send(peer, text, strlen(text), 0));
    return NULL;
}

static void *connect_later(void *listening) {
    nap(300);
    connected(*(int *)listening);
    return NULL;
}

/* Threads that are started with the signal blocked leave it to the main thread. */
static pthread_t start(void *(*action)(void *), void *argument) {
    sigset_t set, before;
    sigfillset(&set);
    pthread_sigmask(SIG_SETMASK, &set, &before);
    pthread_t thread;
    pthread_create(&thread, NULL, action, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return thread;
}

int main(void) {
    begin();
    struct sigevent how = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    must(timer_create(CLOCK_MONOTONIC, &how, &timer));
    int ends[2];
    char buffer[100];
    pair(ends);
    peer = ends[1];

    show_struck("recv", 0, recv(ends[0], buffer, 10, 0));
    show_struck("read", 0, read(ends[0], buffer, 10));
    struct iovec part = {buffer, 10};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    show_struck("recvmsg", 0, recvmsg(ends[0], &message, 0));
    printf("signals %d\n", count);
    pthread_t thread = start(send_later, "restarted");
    show_struck("recv with restart", SA_RESTART, recv(ends[0], buffer, 100, 0));
    pthread_join(thread, NULL);
    printf("signals %d\n", count);

    int waiting = listener(4);
    show_struck("accept", 0, accept(waiting, NULL, NULL));
    thread = start(connect_later, &waiting);
    soon(SA_RESTART);
    int accepted = accept(waiting, NULL, NULL);
    quiet();
    printf("accept with restart: %d\n", accepted > 0);
    pthread_join(thread, NULL);

    /* What is never restarted. */
    struct pollfd p = {.fd = ends[0], .events = POLLIN};
    show_struck("poll", SA_RESTART, poll(&p, 1, 30000));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    show_struck("select", SA_RESTART, select(ends[0] + 1, &set, NULL, NULL, NULL));
    int ep = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(ep, EPOLL_CTL_ADD, ends[0], &event));
    show_struck("epoll_wait", SA_RESTART, epoll_wait(ep, &event, 1, 30000));
    struct timeval limit = {30, 0};
    must(setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    show_struck("recv with a timeout", SA_RESTART, recv(ends[0], buffer, 10, 0));
    limit.tv_sec = 0;
    must(setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));

    /* Bytes that came before the signal. */
    must(send(ends[1], "abc", 3, 0));
    settled(ends[0], POLLIN);
    show_struck("recv of all", 0, recv(ends[0], buffer, 10, MSG_WAITALL));
    static char big[64 << 20];
    soon(0);
    double began = now();
    long n = send(ends[0], big, sizeof big, 0);
    quiet();
    printf("send of much: %d, in time %d\n", n > 0 && n < (long)sizeof big, in_time(now() - began, 2));
    /* Until it stays full: buffers grow. */
    for (int quiet = 0; quiet < 20; quiet++) {
        if (send(ends[0], big, 65536, MSG_DONTWAIT) > 0) quiet = 0;
        nap(5);
    }
    show_struck("send into the full", 0, send(ends[0], big, 65536, 0));

    /* A connect that is interrupted goes on by itself. */
    int full = listener(0);
    int fds[6];
    for (int i = 0; i < 4; i++) {
        fds[i] = must(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        struct sockaddr_in address = name_of(full);
        connect(fds[i], (struct sockaddr *)&address, sizeof address);
    }
    nap(200);
    int late = must(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in address = name_of(full);
    show_struck("connect", 0, connect(late, (struct sockaddr *)&address, sizeof address));
    fcntl(late, F_SETFL, O_NONBLOCK);
    show("connect again", connect(late, (struct sockaddr *)&address, sizeof address));
    for (int i = 0; i < 4; i++) close(fds[i]);
    printf("signals %d\n", count);

    /* A blocked signal interrupts nothing, ppoll lets it in. */
    sigset_t blocked, open;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, &open);
    pair(ends);
    peer = ends[1];
    thread = start(send_later, "not disturbed");
    soon(0);
    show("recv, blocked signal", recv(ends[0], buffer, 100, 0));
    quiet();
    pthread_join(thread, NULL);
    /* The signal is pending, at the latest by this. */
    raise(SIGUSR1);
    struct timespec long_time = {30, 0};
    p.fd = ends[0];
    show("ppoll lets it in", ppoll(&p, 1, &long_time, &open));
    quiet();
    printf("signals %d\n", count);
    raise(SIGUSR1);
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    show("pselect lets it in", pselect(ends[0] + 1, &set, NULL, NULL, &long_time, &open));
    quiet();
    raise(SIGUSR1);
    must(epoll_ctl(ep, EPOLL_CTL_ADD, ends[0], &event));
    show("epoll_pwait lets it in", epoll_pwait(ep, &event, 1, 30000, &open));
    quiet();
    show("epoll_pwait", epoll_pwait(ep, &event, 1, 0, &open));
    printf("signals %d\n", count);
    must(send(ends[1], "x", 1, 0));
    settled(ends[0], POLLIN);
    show("ppoll, ready", ppoll(&p, 1, &long_time, &open));
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    show("pselect, ready", pselect(ends[0] + 1, &set, NULL, NULL, NULL, &open));
    show("epoll_pwait2, ready", epoll_pwait2(ep, &event, 1, &long_time, &open));
    return 0;
}
