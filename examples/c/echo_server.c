/*
 * Sends back what clients send, with a thread for each connection.
 *
 *     echo_server [HOSTPORT]        then: nc 127.0.0.1 7000
 *
 * Ends when standard input ends.
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath.h>
#include <unistd.h>

/* Sends all bytes. Returns false if the connection has ended. */
static int send_all(int fd, const char *at, size_t len)
{
    while (len > 0) {
        ssize_t sent = towpath_send(fd, at, len, 0);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return 0;
        at += sent;
        len -= (size_t)sent;
    }
    return 1;
}

static void *serve(void *argument)
{
    int fd = (int)(intptr_t)argument;
    char bytes[16384];
    ssize_t len;
    while ((len = towpath_recv(fd, bytes, sizeof bytes, 0)) > 0)
        if (!send_all(fd, bytes, (size_t)len))
            break;
    towpath_close(fd);
    return NULL;
}

/* Opens a stack whose port 7 is published. */
static int open_stack(const char *host_port)
{
    char publish[64];
    snprintf(publish, sizeof publish, "127.0.0.1:%s:7", host_port);
    const char *const ports[] = {publish, NULL};
    struct towpath_options options = {.size = sizeof options, .publish = ports};
    int stack = towpath_stack_open(&options);
    if (stack < 0) {
        fprintf(stderr, "echo_server: %s\n", towpath_error());
        exit(1);
    }
    return stack;
}

/* Prints the address where clients reach the server. */
static void print_address(int stack)
{
    struct towpath_published published;
    if (towpath_stack_published(stack, 0, &published) == 0) {
        const struct sockaddr_in *host = (const struct sockaddr_in *)&published.host;
        printf("127.0.0.1:%d\n", ntohs(host->sin_port));
        fflush(stdout);
    }
}

static int listen_on(int stack, uint16_t port)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
    int listener = towpath_socket(stack, AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || towpath_bind(listener, (struct sockaddr *)&any, sizeof any) < 0 ||
        towpath_listen(listener, 128) < 0) {
        perror("echo_server: listen");
        exit(1);
    }
    return listener;
}

static void start(int fd)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd) == 0)
        pthread_detach(thread);
    else
        towpath_close(fd);
}

int main(int argc, char **argv)
{
    int stack = open_stack(argc > 1 ? argv[1] : "7000");
    int listener = listen_on(stack, 7);
    print_address(stack);
    /* A list may contain descriptors of the kernel, as standard input. */
    struct pollfd list[] = {{.fd = listener, .events = POLLIN},
                            {.fd = STDIN_FILENO, .events = POLLIN}};
    for (;;) {
        char byte;
        if (towpath_poll(list, 2, -1) < 0) {
            /* After an error, `revents` is that of the call before. */
            if (errno == EINTR)
                continue;
            break;
        }
        if (list[1].revents != 0 && read(STDIN_FILENO, &byte, 1) <= 0)
            break;
        if (list[0].revents != 0) {
            int fd = towpath_accept(listener, NULL, NULL);
            if (fd >= 0)
                start(fd);
        }
    }
    /* Calls of threads that still serve a connection fail with ENETDOWN. */
    if (towpath_stack_close(stack) < 0) {
        perror("echo_server: close");
        return 1;
    }
    return 0;
}
