/* What went over loopback is there when the call that sent it returns: bytes, datagrams and ends
   are seen by calls that do not wait. Prints how many came too early. */
#include "transcript.h"
#include <sys/ioctl.h>

static int rounds = 100;

/* Ways of looking for something that do not wait. Each gives whether there is something. */
static int by_recv(int fd) {
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) >= 0;
}

static int by_nonblocking(int fd) {
    char byte;
    must(fcntl(fd, F_SETFL, O_NONBLOCK));
    long n = recv(fd, &byte, 1, MSG_PEEK);
    must(fcntl(fd, F_SETFL, 0));
    return n >= 0;
}

static int by_poll(int fd) {
    struct pollfd p = {fd, POLLIN, 0};
    return poll(&p, 1, 0) == 1 && p.revents & POLLIN;
}

static int by_poll_for_both(int fd) {
    struct pollfd p = {fd, POLLIN | POLLOUT, 0};
    return poll(&p, 1, 0) == 1 && p.revents & POLLIN;
}

static int by_select(int fd) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    struct timeval none = {0, 0};
    return select(fd + 1, &set, NULL, NULL, &none) == 1;
}

static int ep, ep_edge;

static int in_set(int set, int fd, int how) {
    struct epoll_event event = {.events = EPOLLIN | how, .data.fd = fd}, found;
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
    return epoll_wait(set, &found, 1, 0) == 1 && found.data.fd == fd;
}

static int by_epoll(int fd) { return in_set(ep, fd, 0); }
static int by_edge(int fd) { return in_set(ep_edge, fd, EPOLLET); }

static int by_count(int fd) {
    int unread = 0;
    must(ioctl(fd, FIONREAD, &unread));
    return unread > 0;
}

static const struct {
    const char *name;
    int (*look)(int);
    int is_for_ends;
} WAYS[] = {
    {"recv", by_recv, 1},     {"O_NONBLOCK", by_nonblocking, 1},
    {"poll", by_poll, 1},     {"poll for both", by_poll_for_both, 1},
    {"select", by_select, 1}, {"epoll", by_epoll, 1},
    {"edge", by_edge, 1},     {"FIONREAD", by_count, 0},
};
enum { COUNT = sizeof WAYS / sizeof *WAYS };

static void take(int fd) {
    char bytes[64];
    must(recv(fd, bytes, sizeof bytes, 0));
}

static void streams(void) {
    for (int way = 0; way < COUNT; way++) {
        int ends[2], early[2] = {0, 0};
        pair(ends);
        for (int n = 0; n < rounds; n++) {
            int from = n % 2; /* Both ends send in turn. */
            must(send(ends[from], "x", 1, 0));
            early[from] += !WAYS[way].look(ends[!from]);
            take(ends[!from]);
        }
        printf("bytes, %s: %d and %d\n", WAYS[way].name, early[0], early[1]);
        close(ends[0]);
        close(ends[1]);
    }
}

static void ends(void) {
    for (int way = 0; way < COUNT; way++) {
        int by_shutdown = 0, by_close = 0, by_reset = 0;
        for (int n = 0; WAYS[way].is_for_ends && n < rounds / 4; n++) {
            int ends[2];
            pair(ends);
            must(shutdown(ends[n % 2], SHUT_WR));
            by_shutdown += !WAYS[way].look(ends[!(n % 2)]);
            close(ends[0]);
            close(ends[1]);
            pair(ends);
            must(close(ends[n % 2]));
            by_close += !WAYS[way].look(ends[!(n % 2)]);
            close(ends[!(n % 2)]);
            pair(ends);
            struct linger at_once = {1, 0};
            must(setsockopt(ends[n % 2], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
            must(close(ends[n % 2]));
            struct pollfd p = {ends[!(n % 2)], POLLIN, 0};
            by_reset += poll(&p, 1, 0) != 1 || !(p.revents & POLLHUP);
            close(ends[!(n % 2)]);
        }
        printf("ends, %s: %d %d %d\n", WAYS[way].name, by_shutdown, by_close, by_reset);
    }
}

static void datagrams(int family) {
    struct sockaddr_storage to;
    socklen_t len = sizeof to;
    int receiver = must(socket(family, SOCK_DGRAM, 0)), sender = must(socket(family, SOCK_DGRAM, 0));
    int known = must(socket(family, SOCK_DGRAM, 0));
    memset(&to, 0, sizeof to);
    to.ss_family = family;
    must(bind(receiver, (struct sockaddr *)&to, family == AF_INET ? sizeof(struct sockaddr_in)
                                                                  : sizeof(struct sockaddr_in6)));
    must(getsockname(receiver, (struct sockaddr *)&to, &len));
    if (family == AF_INET) {
        ((struct sockaddr_in *)&to)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else {
        ((struct sockaddr_in6 *)&to)->sin6_addr = in6addr_loopback;
    }
    must(connect(known, (struct sockaddr *)&to, len));
    for (int way = 0; way < COUNT; way++) {
        int early[2] = {0, 0};
        for (int n = 0; n < rounds; n++) {
            if (n % 2) must(send(known, "x", 1, 0));
            else must(sendto(sender, "x", 1, 0, (struct sockaddr *)&to, len));
            early[n % 2] += !WAYS[way].look(receiver);
            take(receiver);
        }
        printf("datagrams, %s: %d and %d\n", WAYS[way].name, early[0], early[1]);
    }
    close(receiver);
    close(sender);
    close(known);
}

/* Copies of datagrams that go to a group, or to all hosts of a network, and to this one. */
static void shared(const char *name, const char *to, int is_group) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof at;
    int receiver = must(socket(AF_INET, SOCK_DGRAM, 0)), sender = must(socket(AF_INET, SOCK_DGRAM, 0));
    int known = must(socket(AF_INET, SOCK_DGRAM, 0)), on = 1;
    must(bind(receiver, (struct sockaddr *)&at, sizeof at));
    must(getsockname(receiver, (struct sockaddr *)&at, &len));
    must(inet_pton(AF_INET, to, &at.sin_addr));
    struct ip_mreqn member = {at.sin_addr, {htonl(INADDR_LOOPBACK)}, 0};
    if (is_group) must(setsockopt(receiver, IPPROTO_IP, IP_ADD_MEMBERSHIP, &member, sizeof member));
    for (int n = 0; n < 2; n++) {
        int fd = n ? known : sender;
        must(setsockopt(fd, SOL_SOCKET, SO_BROADCAST, &on, sizeof on));
        must(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &member.imr_address, sizeof(struct in_addr)));
    }
    must(connect(known, (struct sockaddr *)&at, len));
    for (int way = 0; way < COUNT; way++) {
        int early[2] = {0, 0};
        for (int n = 0; n < rounds; n++) {
            if (n % 2) must(send(known, "x", 1, 0));
            else must(sendto(sender, "x", 1, 0, (struct sockaddr *)&at, len));
            early[n % 2] += !WAYS[way].look(receiver);
            take(receiver);
        }
        printf("%s, %s: %d and %d\n", name, WAYS[way].name, early[0], early[1]);
    }
    close(receiver);
    close(sender);
    close(known);
}

static void accepted(void) {
    int early = 0, unwritable = 0, fd = listener(16);
    for (int n = 0; n < rounds; n++) {
        int client = connected(fd);
        early += !by_poll(fd);
        close(must(accept(fd, NULL, NULL)));
        close(client);
        client = must(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        struct sockaddr_in address = name_of(fd);
        connect(client, (struct sockaddr *)&address, sizeof address);
        struct pollfd p = {client, POLLOUT, 0};
        unwritable += poll(&p, 1, 0) != 1;
        early += !by_poll(fd);
        close(must(accept(fd, NULL, NULL)));
        close(client);
    }
    printf("connections: %d %d\n", early, unwritable);
    close(fd);
}

/* Of two threads, and of two processes: the one tells the other by a pipe that it has sent. */
static int told[2], theirs[2];

static void *send_and_tell(void *at) {
    int fd = *(int *)at;
    char byte;
    for (int n = 0; n < rounds; n++) {
        must(send(fd, "x", 1, 0));
        must(write(told[1], "x", 1));
        must(read(theirs[0], &byte, 1));
    }
    return NULL;
}

static void by_others(int is_process) {
    int ends[2], early = 0;
    pair(ends);
    must(pipe(told));
    must(pipe(theirs));
    pthread_t thread;
    pid_t child = 0;
    if (is_process) {
        child = must(fork());
        if (child == 0) {
            send_and_tell(&ends[0]);
            _exit(0);
        }
    } else {
        pthread_create(&thread, NULL, send_and_tell, &ends[0]);
    }
    for (int n = 0; n < rounds; n++) {
        char byte;
        must(read(told[0], &byte, 1));
        early += !by_poll(ends[1]);
        take(ends[1]);
        must(write(theirs[1], "x", 1));
    }
    if (is_process) waitpid(child, NULL, 0);
    else pthread_join(thread, NULL);
    printf("sent by %s: %d\n", is_process ? "a process" : "a thread", early);
}

int main(int count, char **words) {
    begin();
    if (count > 1) rounds = atoi(words[1]);
    ep = must(epoll_create1(0));
    ep_edge = must(epoll_create1(0));
    streams();
    ends();
    datagrams(AF_INET);
    datagrams(AF_INET6);
    shared("group", "239.1.2.3", 1);
    shared("broadcast", "127.255.255.255", 0);
    accepted();
    by_others(0);
    by_others(1);
    return 0;
}
