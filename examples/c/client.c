/*
 * Sends a text over TCP, and prints the answer up to its end.
 *
 *     client ADDRESS PORT TEXT
 *
 * The stack is rootless: 10.0.2.2 is this machine.
 */
#define _POSIX_C_SOURCE 200809L
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <towpath.h>

static int fail(const char *what)
{
    fprintf(stderr, "client: %s: %s\n", what, strerror(errno));
    return 1;
}

static int ask(int fd, const struct sockaddr_in *server, const char *text)
{
    if (towpath_connect(fd, (const struct sockaddr *)server, sizeof *server) < 0)
        return fail("connect");
    for (size_t len = strlen(text); len > 0;) {
        ssize_t sent = towpath_send(fd, text, len, 0);
        if (sent < 0)
            return fail("send");
        text += sent;
        len -= (size_t)sent;
    }
    if (towpath_shutdown(fd, SHUT_WR) < 0)
        return fail("shutdown");
    char bytes[4096];
    ssize_t len;
    while ((len = towpath_recv(fd, bytes, sizeof bytes, 0)) > 0)
        fwrite(bytes, 1, (size_t)len, stdout);
    return len < 0 ? fail("recv") : 0;
}

int main(int argc, char **argv)
{
    struct sockaddr_in server = {.sin_family = AF_INET};
    if (argc != 4 || inet_pton(AF_INET, argv[1], &server.sin_addr) != 1) {
        fprintf(stderr, "usage: client ADDRESS PORT TEXT\n");
        return 2;
    }
    server.sin_port = htons((uint16_t)atoi(argv[2]));
    int stack = towpath_stack_open(NULL);
    if (stack < 0) {
        fprintf(stderr, "client: %s\n", towpath_error());
        return 1;
    }
    int fd = towpath_socket(stack, AF_INET, SOCK_STREAM, 0);
    int status = fd < 0 ? fail("socket") : ask(fd, &server, argv[3]);
    if (towpath_stack_close(stack) < 0)
        return fail("close");
    return status;
}
