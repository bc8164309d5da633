/*
 * Sends back what many clients send, on one thread, with an epoll set.
 *
 *     epoll_server [HOSTPORT]       then: nc 127.0.0.1 7000
 *
 * A second thread waits for the end of standard input, and then wakes the set, which ends the
 * server.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath.h>
#include <unistd.h>

enum { EVENTS_MAX = 64, ROOM = 16384 };

/* A connection, with bytes that were received and not sent yet. */
struct connection {
    int fd;
    size_t from, to;
    char bytes[ROOM];
    struct connection *before, *after;
};

static int stack = -1, set = -1, listener = -1;
static struct connection *connections;

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void watch(int op, int fd, uint32_t events, void *data)
{
    struct epoll_event event = {.events = events, .data.ptr = data};
    if (towpath_epoll_ctl(set, op, fd, &event) < 0)
        die("epoll_server: epoll_ctl");
}

static void add(int fd)
{
    struct connection *new = calloc(1, sizeof *new);
    if (new == NULL) {
        towpath_close(fd);
        return;
    }
    new->fd = fd;
    new->after = connections;
    if (connections != NULL)
        connections->before = new;
    connections = new;
    watch(EPOLL_CTL_ADD, fd, EPOLLIN, new);
}

static void end(struct connection *old)
{
    if (old->before != NULL)
        old->before->after = old->after;
    else
        connections = old->after;
    if (old->after != NULL)
        old->after->before = old->before;
    towpath_close(old->fd);
    free(old);
}

static void accept_all(void)
{
    int fd;
    while ((fd = towpath_accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0)
        add(fd);
    if (errno != EAGAIN && errno != ECONNABORTED && errno != EMFILE)
        die("epoll_server: accept");
}

/* Receives if the buffer is empty, and sends it. Returns false if the connection has ended. */
static int serve(struct connection *it)
{
    int was_waiting = it->from < it->to;
    if (!was_waiting) {
        ssize_t len = towpath_recv(it->fd, it->bytes, ROOM, 0);
        if (len <= 0)
            return len < 0 && errno == EAGAIN;
        it->from = 0;
        it->to = (size_t)len;
    }
    ssize_t sent = towpath_send(it->fd, it->bytes + it->from, it->to - it->from, 0);
    if (sent < 0 && errno != EAGAIN)
        return 0;
    if (sent > 0)
        it->from += (size_t)sent;
    int is_waiting = it->from < it->to;
    if (is_waiting != was_waiting)
        watch(EPOLL_CTL_MOD, it->fd, is_waiting ? EPOLLOUT : EPOLLIN, it);
    return 1;
}

static void *wait_for_end(void *unused)
{
    char bytes[64];
    while (read(STDIN_FILENO, bytes, sizeof bytes) > 0)
        ;
    towpath_epoll_wake(set);
    return unused;
}

/* Prints the address where clients reach the server. */
static void print_address(void)
{
    struct towpath_published published;
    if (towpath_stack_published(stack, 0, &published) == 0) {
        const struct sockaddr_in *host = (const struct sockaddr_in *)&published.host;
        printf("127.0.0.1:%d\n", ntohs(host->sin_port));
        fflush(stdout);
    }
}

static void start(const char *host_port)
{
    char publish[64];
    snprintf(publish, sizeof publish, "127.0.0.1:%s:7", host_port);
    const char *const ports[] = {publish, NULL};
    struct towpath_options options = {.size = sizeof options, .publish = ports};
    stack = towpath_stack_open(&options);
    if (stack < 0) {
        fprintf(stderr, "epoll_server: %s\n", towpath_error());
        exit(1);
    }
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(7)};
    listener = towpath_socket(stack, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (listener < 0 || towpath_bind(listener, (struct sockaddr *)&any, sizeof any) < 0 ||
        towpath_listen(listener, 1024) < 0)
        die("epoll_server: listen");
    set = towpath_epoll_create(stack);
    if (set < 0)
        die("epoll_server: epoll_create");
    watch(EPOLL_CTL_ADD, listener, EPOLLIN, NULL);
    print_address();
}

/* Serves until the set is woken. */
static void run(void)
{
    for (;;) {
        struct epoll_event events[EVENTS_MAX];
        int count = towpath_epoll_wait(set, events, EVENTS_MAX, -1);
        if (count < 0 && errno != EINTR)
            die("epoll_server: epoll_wait");
        for (int n = 0; n < count; n++) {
            if (events[n].data.u64 == TOWPATH_EPOLL_WAKE)
                return;
            if (events[n].data.ptr == NULL)
                accept_all();
            else if (!serve(events[n].data.ptr))
                end(events[n].data.ptr);
        }
    }
}

int main(int argc, char **argv)
{
    start(argc > 1 ? argv[1] : "7000");
    pthread_t thread;
    if (pthread_create(&thread, NULL, wait_for_end, NULL) != 0)
        die("epoll_server: pthread_create");
    run();
    pthread_join(thread, NULL);
    while (connections != NULL)
        end(connections);
    if (towpath_stack_close(stack) < 0)
        die("epoll_server: close");
    return 0;
}
