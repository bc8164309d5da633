/*
 * towpath.h: TCP/IP stacks in the process of a C program.
 *
 * A stack is a host of its own. It runs on a thread of this process, needs no privileges, and leaves
 * the machine's network as it is. Link with libtowpath_c (`pkg-config --cflags --libs towpath`).
 * docs/c.md is the manual.
 *
 * Numbers. Stacks, sockets and epoll sets are named by an int of 2^30 or more, which is no
 * descriptor of the kernel. read(2), close(2) and other calls of libc fail with EBADF for it, and
 * the calls below fail with EBADF for a descriptor of the kernel. towpath_poll and
 * towpath_epoll_ctl take descriptors of the kernel, too. A closed number stays invalid until at
 * least 2^20 further objects were opened, so that its use after close is EBADF.
 *
 * Ownership. The library copies what it is given, and keeps no pointer after a call. The program
 * closes each stack, socket and set once. Closing a stack closes its sockets and sets.
 *
 * Errors. A call returns -1 and sets errno, as the call of Linux whose name it has, in the same
 * cases. All calls have in common:
 *   EBADF     the number is not open
 *   ENOTSOCK  a socket was expected, and the number names a stack or a set
 *   EINVAL    a stack was expected, and the number names a socket or a set
 *   EFAULT    a pointer is null. Other invalid pointers are faults of the program
 *   ENETDOWN  the stack has ended, or belongs to the parent of this process (fork)
 *
 * Threads. All calls may be made on any thread at the same time, also on one socket. An object that
 * another thread closes lives until the calls on it have returned: wake them by towpath_shutdown or
 * towpath_epoll_wake. No call may be made in a signal handler.
 *
 * Fork. A stack belongs to the process that opened it. In a child of fork(2) all calls on it fail
 * with ENETDOWN. The child may open a stack of its own.
 *
 * Process exit. exit(3) and a return from main send remaining data, as towpath_stack_close does.
 * _exit(2), abort(3) and signals lose it. From then on, calls of other threads that would fail with
 * ENETDOWN do not return, so that no thread ends the process with a status of its own. Exit handlers
 * and destructors that run later must not wait for such threads.
 * A bug in the library (a panic) aborts the process.
 */
#ifndef TOWPATH_H
#define TOWPATH_H

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Stacks. */

/*
 * Options of a stack. Set `size` and the options that you need, and leave the others zero:
 *
 *     struct towpath_options options = {.size = sizeof options, .link = "tap:tw0"};
 *
 * The texts are those of `towpath run`; docs/library.md describes the options of the same name.
 */
struct towpath_options {
    size_t size;                  /* sizeof(struct towpath_options) */
    const char *link;             /* "rootless" (also NULL), "loopback", or a device: "tap:tw0",
                                     "packet:eth1", "xdp:eth1", "replay:FILE" */
    const char *const *addresses; /* "10.77.0.2/24", ..., NULL; or NULL for those of the link */
    const char *const *publish;   /* "[[HOSTADDR:]HOSTPORT:]PORT[/tcp|/udp]", ..., NULL; or NULL.
                                     Ports of this machine that lead to a rootless stack */
    const char *tcp;              /* defaults of connections, as "ecn=on,timestamps=off"; or NULL */
    const char *netem;            /* delay and loss, as "delay 20ms loss 1%"; or NULL */
    const char *capture;          /* file for the packets of the link (pcapng); or NULL */
    unsigned int mtu;             /* bytes, 1280 to 65535; 0: the default of the link */
    unsigned int threads;         /* threads of the stack: 1, 2, 4, 8 or 16; 0: one */
    int linger_ms;                /* milliseconds that closing waits until peers have all data;
                                     0: 5000, negative: does not wait */
};

/*
 * Starts a stack, and returns its number. NULL: a rootless stack without published ports.
 *
 * EINVAL: an option is invalid. EADDRINUSE: a port or address is in use. EACCES: privileges are
 * missing. ENOMEM: the address space is too small (a stack maps about 130 GiB, most of it never
 * used). EMFILE: too few descriptors. towpath_error tells more.
 */
int towpath_stack_open(const struct towpath_options *options);

/*
 * Closes a stack with its sockets and sets. Waits until peers have all data, for at most
 * `linger_ms`. Calls in progress on other threads fail with ENETDOWN.
 *
 * ETIMEDOUT: peers did not acknowledge all data in time, and were reset. The stack is closed.
 */
int towpath_stack_close(int stack);

/*
 * Writes the stack's address number `index` on its link, with port 0. `*len` is the room at `addr`
 * in bytes before the call, and the length of the address afterwards.
 *
 * ENOENT: there are not so many addresses.
 */
int towpath_stack_address(int stack, size_t index, struct sockaddr *addr, socklen_t *len);

/* Port of this machine that leads to a stack. */
struct towpath_published {
    struct sockaddr_storage host; /* address and port of this machine */
    socklen_t host_len;           /* length of `host` in bytes */
    uint16_t port;                /* port of the stack, in host byte order */
    int protocol;                 /* IPPROTO_TCP or IPPROTO_UDP */
};

/*
 * Writes the published port number `index`. Ports that the kernel chose come last.
 *
 * ENOENT: there are not so many ports.
 */
int towpath_stack_published(int stack, size_t index, struct towpath_published *port);

/*
 * Returns a message about the last error of towpath_stack_open on this thread, for a user. Valid
 * until the next error of towpath_stack_open on this thread, or the end of the thread. Empty without
 * an error.
 */
const char *towpath_error(void);

/*
 * Sockets: socket(2), bind(2), ... of Linux. docs/posix.md lists the options. Differences:
 *   - there are sockets of AF_INET and AF_INET6, SOCK_STREAM and SOCK_DGRAM (and ICMP echo);
 *   - writing to a connection that has ended is EPIPE, and never SIGPIPE;
 *   - descriptors do not pass exec, SCM_RIGHTS or dup.
 */
int towpath_socket(int stack, int domain, int type, int protocol);
int towpath_bind(int fd, const struct sockaddr *addr, socklen_t len);
int towpath_listen(int fd, int backlog);
int towpath_accept(int fd, struct sockaddr *addr, socklen_t *len);
int towpath_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);
int towpath_connect(int fd, const struct sockaddr *addr, socklen_t len);
int towpath_shutdown(int fd, int how);
int towpath_close(int fd); /* a socket or an epoll set */
int towpath_getsockname(int fd, struct sockaddr *addr, socklen_t *len);
int towpath_getpeername(int fd, struct sockaddr *addr, socklen_t *len);
int towpath_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int towpath_setsockopt(int fd, int level, int name, const void *value, socklen_t len);

/* F_GETFL and F_SETFL, for O_NONBLOCK. EINVAL: another command. */
int towpath_fcntl(int fd, int command, int arg);
/* FIONREAD (also SIOCINQ), TIOCOUTQ (also SIOCOUTQ), SIOCATMARK and FIONBIO. ENOTTY: another request. */
int towpath_ioctl(int fd, unsigned long request, int *value);

ssize_t towpath_send(int fd, const void *at, size_t len, int flags);
ssize_t towpath_sendto(int fd, const void *at, size_t len, int flags,
                       const struct sockaddr *to, socklen_t to_len);
ssize_t towpath_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t towpath_recv(int fd, void *at, size_t len, int flags);
ssize_t towpath_recvfrom(int fd, void *at, size_t len, int flags,
                         struct sockaddr *from, socklen_t *from_len);
ssize_t towpath_recvmsg(int fd, struct msghdr *message, int flags);

/*
 * Waiting for many. Lists and sets may contain sockets and epoll sets of one stack, and descriptors
 * of the kernel: a pipe, a terminal, a timerfd.
 *
 * EXDEV: there are sockets of several stacks.
 */

/* poll(2). `timeout_ms`: milliseconds, negative: no limit. A number that is not open is POLLNVAL. */
int towpath_poll(struct pollfd *list, nfds_t count, int timeout_ms);

/*
 * epoll_create1(2), epoll_ctl(2) and epoll_wait(2). Level-triggered unless EPOLLET is set.
 * EPOLLONESHOT and EPOLLEXCLUSIVE work. A closed socket leaves its sets.
 */
int towpath_epoll_create(int stack);
int towpath_epoll_ctl(int set, int op, int fd, struct epoll_event *event);
int towpath_epoll_wait(int set, struct epoll_event *events, int most, int timeout_ms);

/*
 * Wakes a thread that waits for the set, or the next one that does. Its towpath_epoll_wait returns
 * an event with the data TOWPATH_EPOLL_WAKE, which is refused in towpath_epoll_ctl (EINVAL).
 * Several calls before the event is returned cause one event.
 */
int towpath_epoll_wake(int set);
#define TOWPATH_EPOLL_WAKE UINT64_MAX

#ifdef __cplusplus
}
#endif

#endif
