/* Null pointers: EFAULT, and no harm done. */
#include "transcript.h"

/* Volatile: the compiler would tell what we know. */
static void *volatile NOWHERE = NULL;

int main(void) {
    begin();
    char buffer[64];
    struct sockaddr_in four = loopback(0);
    int fd = must(socket(AF_INET, SOCK_STREAM, 0));
    show("bind", bind(fd, NOWHERE, sizeof four));
    show("connect", connect(fd, NOWHERE, sizeof four));
    show("getsockname", getsockname(fd, (struct sockaddr *)buffer, NOWHERE));
    int ends[2];
    pair(ends);
    show("send", send(ends[0], NOWHERE, 10, 0));
    show("send nothing", send(ends[0], NOWHERE, 0, 0));
    must(send(ends[0], "abc", 3, 0));
    settled(ends[1], POLLIN);
    show("recv", recv(ends[1], NOWHERE, 10, 0));
    show("recv nothing", recv(ends[1], NOWHERE, 0, 0));
    show("what is there stays", recv(ends[1], buffer, sizeof buffer, 0));
    show("sendmsg", sendmsg(ends[0], NOWHERE, 0));
    show("recvmsg", recvmsg(ends[0], NOWHERE, 0));
    show("getsockopt", getsockopt(ends[0], SOL_SOCKET, SO_TYPE, buffer, NOWHERE));
    show("setsockopt", setsockopt(ends[0], SOL_SOCKET, SO_KEEPALIVE, NOWHERE, 4));
    show("poll", poll(NOWHERE, 1, 0));
    int ep = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLOUT};
    show("epoll_ctl", epoll_ctl(ep, EPOLL_CTL_ADD, ends[0], NOWHERE));
    must(epoll_ctl(ep, EPOLL_CTL_ADD, ends[0], &event));
    show("epoll_wait", epoll_wait(ep, NOWHERE, 4, 0));
    return 0;
}
