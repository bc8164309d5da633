/* A signal handler uses the sockets that the interrupted call is using: nothing hangs, and no byte is lost,
   doubled or torn. */
#include "transcript.h"
#include <stdatomic.h>

/* At least so long, and until much has happened. */
#define SECONDS 2
#define LONG 3000
static int out[2], in[2], datagrams[2], waiting, extra[2];
static atomic_int stop;
/* What calls said that they moved; and the sum of the bytes that were read. */
static volatile long main_sent, handler_sent, handler_calls;
static struct tally {
    long count, sum;
} main_read, handler_read;
static atomic_long accepted_count;
static unsigned char letters_m[LONG], letters_h[LONG];

static ssize_t take(struct tally *tally, int len, int flags) {
    unsigned char bytes[LONG];
    ssize_t n = recv(in[0], bytes, len, flags);
    if (n > 0) tally->count += n;
    for (ssize_t i = 0; i < n; i++) tally->sum += bytes[i];
    return n;
}

static void accept_one(void) {
    int fd = accept(waiting, NULL, NULL);
    if (fd == -1) return;
    accepted_count++;
    send(fd, "!", 1, MSG_DONTWAIT);
    close(fd);
}

static void handle(int number) {
    (void)number;
    int before = errno;
    ssize_t n;
    struct pollfd polled[2] = {{.fd = in[0], .events = POLLIN}, {.fd = extra[0], .events = POLLIN}};
    fd_set set;
    struct timeval moment = {0, 100};
    switch (handler_calls++ % 9) {
    case 0:
    case 1:
        n = send(out[0], letters_h, 1 + handler_calls % 700, MSG_DONTWAIT);
        if (n > 0) handler_sent += n;
        break;
    case 2:
        send(datagrams[0], letters_h, 1 + handler_calls % LONG, MSG_DONTWAIT);
        break;
    case 3:
        take(&handler_read, 1 + handler_calls % LONG, MSG_DONTWAIT);
        break;
    case 4:
        poll(polled, 2, 1);
        break;
    case 5:
        FD_ZERO(&set);
        FD_SET(extra[0], &set);
        FD_SET(in[0], &set);
        select(1024, &set, NULL, NULL, &moment);
        break;
    case 6:
        close(socket(AF_INET, SOCK_STREAM, 0));
        break;
    case 7:
        n = 1;
        setsockopt(out[0], IPPROTO_TCP, TCP_NODELAY, &n, sizeof(int));
        setsockopt(extra[0], SOL_SOCKET, SO_PRIORITY, &n, sizeof(int));
        break;
    case 8:
        accept_one();
        break;
    }
    errno = before;
}

/* The other ends, on threads that see no signals. */
static void *read_letters(void *counts) {
    static unsigned char bytes[65536];
    long *count = counts;
    ssize_t n;
    while ((n = recv(out[1], bytes, sizeof bytes, 0)) > 0) {
        for (ssize_t i = 0; i < n; i++) count[bytes[i] == 'm' ? 0 : bytes[i] == 'h' ? 1 : 2]++;
    }
    return NULL;
}

static long written, written_sum;

static void *write_numbers(void *none) {
    (void)none;
    unsigned char bytes[1000];
    for (unsigned at = 0; !stop;) {
        for (unsigned i = 0; i < sizeof bytes; i++) bytes[i] = (at + i) % 251;
        ssize_t n = send(in[1], bytes, sizeof bytes, 0);
        if (n <= 0) break;
        for (ssize_t i = 0; i < n; i++) written_sum += bytes[i];
        at += n;
        written += n;
    }
    shutdown(in[1], SHUT_WR);
    return NULL;
}

static void *check_datagrams(void *torn) {
    unsigned char bytes[LONG + 1];
    ssize_t n;
    struct timeval limit = {1, 0};
    setsockopt(datagrams[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    while ((n = recv(datagrams[1], bytes, sizeof bytes, 0)) > 0 || !stop) {
        for (ssize_t i = 1; i < n; i++) {
            if (bytes[i] != bytes[0]) {
                ++*(long *)torn;
                break;
            }
        }
    }
    return NULL;
}

static atomic_long connects;

static void *connect_often(void *none) {
    (void)none;
    while (!stop) {
        int fd = connected(waiting);
        char byte;
        connects += recv(fd, &byte, 1, 0) == 1;
        close(fd);
        nap(1);
    }
    return NULL;
}

int main(void) {
    begin();
    memset(letters_m, 'm', LONG);
    memset(letters_h, 'h', LONG);
    pair(out);
    pair(in);
    pair(extra);
    datagrams[0] = bound(SOCK_DGRAM);
    datagrams[1] = bound(SOCK_DGRAM);
    struct sockaddr_in to = name_of(datagrams[1]);
    must(connect(datagrams[0], (struct sockaddr *)&to, sizeof to));
    waiting = listener(16);
    fcntl(waiting, F_SETFL, O_NONBLOCK);
    int ep = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(ep, EPOLL_CTL_ADD, in[0], &event));
    must(epoll_ctl(ep, EPOLL_CTL_ADD, waiting, &event));

    sigset_t set, before;
    sigfillset(&set);
    pthread_sigmask(SIG_SETMASK, &set, &before);
    pthread_t threads[4];
    long counts[3] = {0}, torn = 0;
    pthread_create(&threads[0], NULL, read_letters, counts);
    pthread_create(&threads[1], NULL, write_numbers, NULL);
    pthread_create(&threads[2], NULL, check_datagrams, &torn);
    pthread_create(&threads[3], NULL, connect_often, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    timer_t timer;
    struct sigevent how = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    must(timer_create(CLOCK_MONOTONIC, &how, &timer));
    struct itimerspec often = {{0, 200000}, {0, 200000}};
    must(timer_settime(timer, 0, &often, NULL));

    double end = now() + SECONDS;
    for (long i = 0; now() < end || handler_calls <= 500 || connects <= 10; i++) {
        ssize_t n = send(out[0], letters_m, 1 + i % LONG, i % 3 ? MSG_DONTWAIT : 0);
        if (n > 0) main_sent += n;
        send(datagrams[0], letters_m, 1 + i % LONG, MSG_DONTWAIT);
        struct pollfd polled[2] = {{.fd = in[0], .events = POLLIN}, {.fd = waiting, .events = POLLIN}};
        poll(polled, 2, 0);
        epoll_wait(ep, &event, 1, i % 16 ? 0 : 1);
        take(&main_read, LONG, MSG_DONTWAIT);
        accept_one();
        close(socket(AF_INET, SOCK_DGRAM, 0));
    }
    struct itimerspec never = {{0, 0}, {0, 0}};
    must(timer_settime(timer, 0, &never, NULL));
    long calls = handler_calls;
    stop = 1;
    shutdown(out[0], SHUT_WR);
    while (take(&main_read, LONG, 0) > 0) {}
    double wait_end = now() + 3;
    while (accepted_count == 0 || now() < wait_end - 2.5) accept_one();
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    printf("handler ran: %d\n", calls > 500);
    printf("sent: %d %d, foreign %ld\n", counts[0] == main_sent, counts[1] == handler_sent, counts[2]);
    if (counts[0] != main_sent || counts[1] != handler_sent)
        printf("%ld of %ld, %ld of %ld\n", counts[0], main_sent, counts[1], handler_sent);
    long was_read = main_read.count + handler_read.count;
    printf("received: %d %d\n", was_read == written, main_read.sum + handler_read.sum == written_sum);
    if (was_read != written) printf("%ld of %ld\n", was_read, written);
    printf("torn datagrams: %ld\n", torn);
    printf("accepted: %d\n", accepted_count - connects <= 1 && connects > 10);
    if (accepted_count - connects > 1) printf("%ld of %ld\n", connects, accepted_count);
    return 0;
}
