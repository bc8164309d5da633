/* Several threads on one socket, set and stack. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <pthread.h>
#include <towpath.h>

enum { ROUNDS = 200, LEN = 1000, WAITERS = 4 };

static int stack, listener, set, ends[2];

static void connect_ends(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t len = sizeof address;
    listener = towpath_socket(stack, AF_INET, SOCK_STREAM, 0);
    WORKS(towpath_bind(listener, (struct sockaddr *)&address, sizeof address));
    WORKS(towpath_listen(listener, 1));
    WORKS(towpath_getsockname(listener, (struct sockaddr *)&address, &len));
    ends[0] = towpath_socket(stack, AF_INET, SOCK_STREAM, 0);
    WORKS(towpath_connect(ends[0], (struct sockaddr *)&address, sizeof address));
    ends[1] = towpath_accept(listener, NULL, NULL);
    CHECK(ends[1] > 0);
}

static void *sends(void *unused)
{
    char bytes[LEN];
    memset(bytes, 'x', LEN);
    for (int n = 0; n < ROUNDS; n++)
        CHECK(towpath_send(ends[0], bytes, LEN, 0) == LEN);
    return unused;
}

static void *receives(void *unused)
{
    char bytes[LEN];
    size_t *received = unused;
    ssize_t len;
    while ((len = towpath_recv(ends[1], bytes, LEN, 0)) > 0)
        *received += (size_t)len;
    CHECK(len == 0);
    return NULL;
}

/* Two threads send, and two receive, on the ends of one connection. */
static void two_on_each_end(void)
{
    pthread_t senders[2], receivers[2];
    size_t received[2] = {0, 0};
    for (int n = 0; n < 2; n++) {
        WORKS(pthread_create(&receivers[n], NULL, receives, &received[n]));
        WORKS(pthread_create(&senders[n], NULL, sends, NULL));
    }
    for (int n = 0; n < 2; n++)
        WORKS(pthread_join(senders[n], NULL));
    WORKS(towpath_shutdown(ends[0], SHUT_WR));
    for (int n = 0; n < 2; n++)
        WORKS(pthread_join(receivers[n], NULL));
    CHECK(received[0] + received[1] == (size_t)2 * ROUNDS * LEN);
}

static void *closes(void *closed)
{
    *(int *)closed = towpath_close(ends[0]) == 0;
    return NULL;
}

static void two_close(void)
{
    int closed[2];
    pthread_t threads[2];
    for (int n = 0; n < 2; n++)
        WORKS(pthread_create(&threads[n], NULL, closes, &closed[n]));
    for (int n = 0; n < 2; n++)
        WORKS(pthread_join(threads[n], NULL));
    CHECK(closed[0] + closed[1] == 1);
}

static void *waits(void *unused)
{
    struct epoll_event event;
    CHECK(towpath_epoll_wait(set, &event, 1, -1) == 1);
    CHECK(event.data.u64 == TOWPATH_EPOLL_WAKE && event.events == EPOLLIN);
    return unused;
}

static void a_wake_up_ends_one_wait(void)
{
    pthread_t thread;
    struct epoll_event event;
    WORKS(pthread_create(&thread, NULL, waits, NULL));
    WORKS(towpath_epoll_wake(set));
    WORKS(pthread_join(thread, NULL));
    CHECK(towpath_epoll_wait(set, &event, 1, 0) == 0);
    /* Wake-ups before a wait cause one event. */
    WORKS(towpath_epoll_wake(set));
    WORKS(towpath_epoll_wake(set));
    CHECK(towpath_epoll_wait(set, &event, 1, -1) == 1);
    CHECK(towpath_epoll_wait(set, &event, 1, 0) == 0);
}

static void *waits_shortly(void *events)
{
    struct epoll_event event;
    *(int *)events = towpath_epoll_wait(set, &event, 1, 20);
    return NULL;
}

/* The kernel reports an eventfd to all threads that look at it before it is read. */
static void a_wake_up_ends_the_wait_of_one_thread(void)
{
    for (int round = 0; round < 20; round++) {
        pthread_t threads[WAITERS];
        int events[WAITERS], sum = 0;
        for (int n = 0; n < WAITERS; n++)
            WORKS(pthread_create(&threads[n], NULL, waits_shortly, &events[n]));
        WORKS(towpath_epoll_wake(set));
        for (int n = 0; n < WAITERS; n++) {
            WORKS(pthread_join(threads[n], NULL));
            sum += events[n];
        }
        CHECK(sum == 1);
    }
}

static void *accepts(void *unused)
{
    FAILS(towpath_accept(listener, NULL, NULL), ENETDOWN);
    return unused;
}

static void *waits_for_ever(void *waited)
{
    struct epoll_event event;
    FAILS(towpath_epoll_wait(*(int *)waited, &event, 1, -1), ENETDOWN);
    return NULL;
}

static void *polls(void *unused)
{
    struct pollfd entry = {.fd = listener, .events = POLLIN};
    FAILS(towpath_poll(&entry, 1, -1), ENETDOWN);
    return unused;
}

int main(void)
{
    struct towpath_options options = {.size = sizeof options, .link = "loopback"};
    stack = towpath_stack_open(&options);
    CHECK(stack > 0);
    connect_ends();
    set = towpath_epoll_create(stack);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    WORKS(towpath_epoll_ctl(set, EPOLL_CTL_ADD, listener, &event));
    two_on_each_end();
    two_close();
    a_wake_up_ends_one_wait();
    a_wake_up_ends_the_wait_of_one_thread();
    int empty = towpath_epoll_create(stack);
    pthread_t threads[4];
    WORKS(pthread_create(&threads[0], NULL, accepts, NULL));
    WORKS(pthread_create(&threads[1], NULL, waits_for_ever, &set));
    WORKS(pthread_create(&threads[2], NULL, waits_for_ever, &empty));
    WORKS(pthread_create(&threads[3], NULL, polls, NULL));
    /* Most runs close the stack while the threads wait; the result is the same before that. */
    struct timespec moment = {.tv_nsec = 50 * 1000 * 1000};
    nanosleep(&moment, NULL);
    WORKS(towpath_stack_close(stack));
    for (int n = 0; n < 4; n++)
        WORKS(pthread_join(threads[n], NULL));
    return 0;
}
