/* Bad input: each case is an errno. */
#define _GNU_SOURCE
#include "check.h"
#include <limits.h>
#include <signal.h>
#include <sys/wait.h>
#include <towpath.h>
#include <unistd.h>

static int open_loopback(void)
{
    struct towpath_options options = {.size = sizeof options, .link = "loopback"};
    int stack = towpath_stack_open(&options);
    CHECK(stack >= 1 << 30);
    return stack;
}

static struct sockaddr_in loopback(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

/* Every call fails with the errno for this number. */
static void all_fail(int fd, int socket_error, int stack_error)
{
    char byte = 0;
    int value = 0;
    struct sockaddr_in address = loopback(80);
    struct sockaddr *at = (struct sockaddr *)&address;
    socklen_t len = sizeof address, value_len = sizeof value;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct epoll_event event = {.events = EPOLLIN};
    FAILS(towpath_bind(fd, at, len), socket_error);
    FAILS(towpath_listen(fd, 1), socket_error);
    FAILS(towpath_accept(fd, at, &len), socket_error);
    FAILS(towpath_accept4(fd, NULL, NULL, 0), socket_error);
    FAILS(towpath_connect(fd, at, len), socket_error);
    FAILS(towpath_shutdown(fd, SHUT_RDWR), socket_error);
    FAILS(towpath_close(fd), socket_error);
    FAILS(towpath_getsockname(fd, at, &len), socket_error);
    FAILS(towpath_getpeername(fd, at, &len), socket_error);
    FAILS(towpath_getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &value_len), socket_error);
    FAILS(towpath_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, value_len), socket_error);
    FAILS(towpath_fcntl(fd, F_GETFL, 0), socket_error);
    FAILS(towpath_ioctl(fd, FIONREAD, &value), socket_error);
    FAILS(towpath_send(fd, &byte, 1, 0), socket_error);
    FAILS(towpath_sendto(fd, &byte, 1, 0, at, len), socket_error);
    FAILS(towpath_sendmsg(fd, &message, 0), socket_error);
    FAILS(towpath_recv(fd, &byte, 1, 0), socket_error);
    FAILS(towpath_recvfrom(fd, &byte, 1, 0, at, &len), socket_error);
    FAILS(towpath_recvmsg(fd, &message, 0), socket_error);
    FAILS(towpath_epoll_ctl(fd, EPOLL_CTL_ADD, fd, &event), socket_error);
    FAILS(towpath_epoll_wait(fd, &event, 1, 0), socket_error);
    FAILS(towpath_epoll_wake(fd), socket_error);
    FAILS(towpath_socket(fd, AF_INET, SOCK_STREAM, 0), stack_error);
    FAILS(towpath_epoll_create(fd), stack_error);
    FAILS(towpath_stack_close(fd), stack_error);
    FAILS(towpath_stack_address(fd, 0, at, &len), stack_error);
    FAILS(towpath_stack_published(fd, 0, NULL), stack_error);
}

static void numbers_that_are_not_open(void)
{
    const int wrong[] = {-1, INT_MIN, 0, 3, 1 << 30, (1 << 30) + 1, INT_MAX};
    for (size_t n = 0; n < sizeof wrong / sizeof *wrong; n++) {
        all_fail(wrong[n], EBADF, EBADF);
        struct pollfd entry = {.fd = wrong[n] < 3 ? 1 << 30 : wrong[n], .events = POLLIN};
        CHECK(towpath_poll(&entry, 1, -1) == 1 && entry.revents == POLLNVAL);
    }
    CHECK(towpath_poll(NULL, 0, 0) == 0);
}

static void options_are_checked(void)
{
    CHECK(strcmp(towpath_error(), "") == 0);
    struct towpath_options none = {.size = 0};
    FAILS(towpath_stack_open(&none), EINVAL);
    CHECK(strstr(towpath_error(), "size") != NULL);
    struct towpath_options link = {.size = sizeof link, .link = "pakket:eth1"};
    FAILS(towpath_stack_open(&link), EINVAL);
    CHECK(strstr(towpath_error(), "expected tap, packet, xdp") != NULL);
    struct towpath_options text = {.size = sizeof text, .link = "\xff"};
    FAILS(towpath_stack_open(&text), EINVAL);
    const char *const ports[] = {"80x:80", NULL};
    struct towpath_options publish = {.size = sizeof publish, .publish = ports};
    FAILS(towpath_stack_open(&publish), EINVAL);
    struct towpath_options threads = {.size = sizeof threads, .threads = 3};
    FAILS(towpath_stack_open(&threads), EINVAL);
    struct towpath_options mtu = {.size = sizeof mtu, .mtu = 1};
    FAILS(towpath_stack_open(&mtu), EINVAL);
}

static void numbers_of_another_kind(int stack)
{
    int fd = towpath_socket(stack, AF_INET, SOCK_STREAM, 0);
    int set = towpath_epoll_create(stack);
    struct epoll_event event = {.events = EPOLLIN};
    FAILS(towpath_recv(stack, &event, 1, 0), ENOTSOCK);
    FAILS(towpath_close(stack), ENOTSOCK);
    FAILS(towpath_recv(set, &event, 1, 0), ENOTSOCK);
    FAILS(towpath_stack_close(fd), EINVAL);
    FAILS(towpath_socket(set, AF_INET, SOCK_STREAM, 0), EINVAL);
    FAILS(towpath_epoll_wait(fd, &event, 1, 0), EINVAL);
    FAILS(towpath_epoll_ctl(set, EPOLL_CTL_ADD, stack, &event), EPERM);
    FAILS(towpath_epoll_ctl(set, EPOLL_CTL_ADD, set, &event), EINVAL);
    struct pollfd entry = {.fd = stack, .events = POLLIN};
    CHECK(towpath_poll(&entry, 1, -1) == 1 && entry.revents == POLLNVAL);
    FAILS(towpath_socket(stack, AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
    FAILS(towpath_socket(stack, AF_INET, SOCK_RAW, 0), EPERM);
    FAILS(towpath_socket(stack, AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
    WORKS(towpath_close(fd));
    WORKS(towpath_close(set));
    all_fail(fd, EBADF, EBADF);
    all_fail(set, EBADF, EBADF);
}

/* Calls of libc on our numbers, and our calls on descriptors of the kernel. */
static void descriptors_of_the_kernel(int stack)
{
    char byte = 0;
    int pipes[2];
    WORKS(pipe(pipes));
    all_fail(pipes[0], EBADF, EBADF);
    /* The socket's descriptor of the kernel is the lowest free number. */
    int inner = dup(0);
    close(inner);
    int fd = towpath_socket(stack, AF_INET, SOCK_STREAM, 0);
    FAILS(read(fd, &byte, 1), EBADF);
    FAILS(send(fd, &byte, 1, 0), EBADF);
    FAILS(close(fd), EBADF);
    FAILS(read(inner, &byte, 1), EBADF);
    FAILS(write(inner, &byte, 1), EBADF);
    all_fail(inner, EBADF, EBADF);
    struct pollfd list[] = {{.fd = fd}, {.fd = inner, .events = POLLIN}, {.fd = INT_MIN}};
    CHECK(towpath_poll(list, 3, -1) >= 1 && list[1].revents == POLLNVAL && list[2].revents == 0);
    int set = towpath_epoll_create(stack);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = TOWPATH_EPOLL_WAKE};
    FAILS(towpath_epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), EINVAL);
    event.data.u64 = 1;
    FAILS(towpath_epoll_ctl(set, EPOLL_CTL_ADD, inner, &event), EBADF);
    /* A pipe may be in the same set and list. */
    WORKS(towpath_epoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &event));
    CHECK(towpath_epoll_wait(set, &event, 1, 0) == 0);
    CHECK(write(pipes[1], "x", 1) == 1);
    CHECK(towpath_epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 1);
    list[1].fd = pipes[0];
    CHECK(towpath_poll(list, 3, -1) >= 1 && list[1].revents == POLLIN);
    WORKS(towpath_close(set));
    WORKS(towpath_close(fd));
    close(pipes[0]);
    close(pipes[1]);
}

static void pointers_and_lengths(int stack)
{
    int fd = towpath_socket(stack, AF_INET, SOCK_STREAM, 0);
    int udp = towpath_socket(stack, AF_INET, SOCK_DGRAM, 0);
    int set = towpath_epoll_create(stack);
    int value = 1;
    socklen_t len = sizeof value;
    struct sockaddr_in address = loopback(80);
    struct sockaddr *at = (struct sockaddr *)&address;
    FAILS(towpath_bind(fd, NULL, sizeof address), EFAULT);
    FAILS(towpath_bind(fd, at, 3), EINVAL);
    FAILS(towpath_bind(fd, at, UINT_MAX), EINVAL);
    FAILS(towpath_connect(fd, NULL, sizeof address), EFAULT);
    FAILS(towpath_connect(fd, at, 3), EINVAL);
    FAILS(towpath_getsockname(fd, NULL, NULL), EFAULT);
    FAILS(towpath_getsockname(fd, at, NULL), EFAULT);
    FAILS(towpath_getsockopt(fd, SOL_SOCKET, SO_TYPE, NULL, &len), EFAULT);
    FAILS(towpath_getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, NULL), EFAULT);
    FAILS(towpath_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, NULL, len), EFAULT);
    FAILS(towpath_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, 1), EINVAL);
    FAILS(towpath_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, UINT_MAX), EINVAL);
    FAILS(towpath_setsockopt(fd, SOL_SOCKET, 9999, &value, len), ENOPROTOOPT);
    FAILS(towpath_sendto(udp, NULL, 5, 0, at, sizeof address), EFAULT);
    FAILS(towpath_sendto(udp, &value, 4, 0, at, 3), EINVAL);
    FAILS(towpath_sendto(udp, &value, 4, 0, at, UINT_MAX), EINVAL);
    FAILS(towpath_recv(udp, NULL, 5, MSG_DONTWAIT), EFAULT);
    FAILS(towpath_sendmsg(udp, NULL, 0), EFAULT);
    FAILS(towpath_recvmsg(udp, NULL, 0), EFAULT);
    struct msghdr message = {.msg_iov = NULL, .msg_iovlen = 1};
    FAILS(towpath_sendmsg(udp, &message, 0), EFAULT);
    FAILS(towpath_recvmsg(udp, &message, 0), EFAULT);
    message.msg_iovlen = SIZE_MAX;
    FAILS(towpath_sendmsg(udp, &message, 0), EMSGSIZE);
    message = (struct msghdr){.msg_control = &value, .msg_controllen = SIZE_MAX};
    FAILS(towpath_recvmsg(udp, &message, MSG_DONTWAIT), ENOBUFS);
    FAILS(towpath_poll(NULL, 1, 0), EFAULT);
    FAILS(towpath_poll(NULL, ULONG_MAX, 0), EINVAL);
    FAILS(towpath_epoll_ctl(set, EPOLL_CTL_ADD, fd, NULL), EFAULT);
    FAILS(towpath_epoll_wait(set, NULL, 1, 0), EFAULT);
    struct epoll_event event;
    FAILS(towpath_epoll_wait(set, &event, 0, 0), EINVAL);
    FAILS(towpath_epoll_wait(set, &event, -1, 0), EINVAL);
    FAILS(towpath_stack_address(stack, 0, at, &len), ENOENT);
    FAILS(towpath_stack_published(stack, 0, NULL), ENOENT);
    FAILS(towpath_fcntl(fd, F_DUPFD, 0), EINVAL);
    FAILS(towpath_fcntl(set, F_GETFL, 0), EINVAL);
    FAILS(towpath_ioctl(fd, FIONREAD, NULL), EFAULT);
    FAILS(towpath_ioctl(fd, SIOCGIFCONF, &value), ENOTTY);
    FAILS(towpath_ioctl(set, FIONREAD, &value), ENOTTY);
    WORKS(towpath_close(fd));
    WORKS(towpath_close(udp));
    WORKS(towpath_close(set));
}

static void another_stack(int stack)
{
    int other = open_loopback();
    int ours = towpath_socket(stack, AF_INET, SOCK_DGRAM, 0);
    int theirs = towpath_socket(other, AF_INET, SOCK_DGRAM, 0);
    int set = towpath_epoll_create(stack);
    struct epoll_event event = {.events = EPOLLIN};
    FAILS(towpath_epoll_ctl(set, EPOLL_CTL_ADD, theirs, &event), EXDEV);
    struct pollfd list[] = {{.fd = ours}, {.fd = theirs}};
    FAILS(towpath_poll(list, 2, 0), EXDEV);
    WORKS(towpath_stack_close(other));
    all_fail(theirs, EBADF, EBADF);
    all_fail(other, EBADF, EBADF);
    WORKS(towpath_close(ours));
    WORKS(towpath_close(set));
}

/* A connection of the stack with itself. */
static void connected(int stack, int ends[2])
{
    struct sockaddr_in address = loopback(0);
    socklen_t len = sizeof address;
    int listener = towpath_socket(stack, AF_INET, SOCK_STREAM, 0);
    WORKS(towpath_bind(listener, (struct sockaddr *)&address, sizeof address));
    WORKS(towpath_listen(listener, 1));
    WORKS(towpath_getsockname(listener, (struct sockaddr *)&address, &len));
    ends[0] = towpath_socket(stack, AF_INET, SOCK_STREAM, 0);
    WORKS(towpath_connect(ends[0], (struct sockaddr *)&address, sizeof address));
    ends[1] = towpath_accept(listener, NULL, NULL);
    CHECK(ends[1] >= 1 << 30);
    WORKS(towpath_close(listener));
}

/* The connection ends, because the program has no number for it. */
static void accept_with_a_negative_length(int stack)
{
    char byte;
    struct sockaddr_in address = loopback(81);
    struct sockaddr *at = (struct sockaddr *)&address;
    int listener = towpath_socket(stack, AF_INET, SOCK_STREAM, 0);
    int client = towpath_socket(stack, AF_INET, SOCK_STREAM, 0);
    WORKS(towpath_bind(listener, at, sizeof address));
    WORKS(towpath_listen(listener, 1));
    WORKS(towpath_connect(client, at, sizeof address));
    socklen_t len = UINT_MAX;
    FAILS(towpath_accept(listener, at, &len), EINVAL);
    CHECK(towpath_recv(client, &byte, 1, 0) == 0);
    WORKS(towpath_close(client));
    WORKS(towpath_close(listener));
}

static void nonblocking_and_ended(int stack)
{
    char bytes[4] = {0};
    int ends[2];
    connected(stack, ends);
    FAILS(towpath_recv(ends[0], bytes, 4, MSG_DONTWAIT), EAGAIN);
    WORKS(towpath_fcntl(ends[0], F_SETFL, O_NONBLOCK));
    CHECK(towpath_fcntl(ends[0], F_GETFL, 0) == (O_RDWR | O_NONBLOCK));
    FAILS(towpath_recv(ends[0], bytes, 4, 0), EAGAIN);
    WORKS(towpath_fcntl(ends[0], F_SETFL, 0));
    CHECK(towpath_send(ends[1], "last", 4, 0) == 4);
    CHECK(towpath_recv(ends[0], bytes, 4, MSG_WAITALL | MSG_PEEK) == 4);
    int count = 0, on = 1, off = 0;
    CHECK(towpath_ioctl(ends[0], FIONREAD, &count) == 0 && count == 4);
    CHECK(towpath_recv(ends[0], bytes, 4, MSG_WAITALL) == 4 && memcmp(bytes, "last", 4) == 0);
    CHECK(towpath_ioctl(ends[0], FIONREAD, &count) == 0 && count == 0);
    WORKS(towpath_ioctl(ends[0], FIONBIO, &on));
    FAILS(towpath_recv(ends[0], bytes, 4, 0), EAGAIN);
    WORKS(towpath_ioctl(ends[0], FIONBIO, &off));
    CHECK(towpath_fcntl(ends[0], F_GETFL, 0) == O_RDWR);
    /* EPIPE, and no SIGPIPE, which would end this program. */
    WORKS(towpath_shutdown(ends[0], SHUT_WR));
    FAILS(towpath_send(ends[0], bytes, 4, 0), EPIPE);
    CHECK(towpath_recv(ends[1], bytes, 4, 0) == 0);
    WORKS(towpath_close(ends[0]));
    WORKS(towpath_close(ends[1]));
}

static void child_of_fork(int stack)
{
    int fd = towpath_socket(stack, AF_INET, SOCK_DGRAM, 0);
    pid_t child = fork();
    if (child == 0) {
        char byte = 0;
        struct pollfd entry = {.fd = fd};
        FAILS(towpath_recv(fd, &byte, 1, 0), ENETDOWN);
        FAILS(towpath_send(fd, &byte, 1, 0), ENETDOWN);
        FAILS(towpath_poll(&entry, 1, -1), ENETDOWN);
        FAILS(towpath_close(fd), ENETDOWN);
        FAILS(towpath_socket(stack, AF_INET, SOCK_DGRAM, 0), ENETDOWN);
        FAILS(towpath_epoll_create(stack), ENETDOWN);
        FAILS(towpath_stack_close(stack), ENETDOWN);
        int ends[2], own = open_loopback();
        connected(own, ends);
        WORKS(towpath_stack_close(own));
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    WORKS(towpath_close(fd));
}

int main(void)
{
    numbers_that_are_not_open();
    options_are_checked();
    int stack = open_loopback();
    numbers_of_another_kind(stack);
    descriptors_of_the_kernel(stack);
    pointers_and_lengths(stack);
    another_stack(stack);
    accept_with_a_negative_length(stack);
    nonblocking_and_ended(stack);
    child_of_fork(stack);
    WORKS(towpath_stack_close(stack));
    all_fail(stack, EBADF, EBADF);
    return 0;
}
