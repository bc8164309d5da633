/*
 * Sends each datagram back to its sender.
 *
 *     udp_echo [HOSTPORT]           then: nc -u 127.0.0.1 7000
 *
 * Ends when a datagram "end" comes.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include <towpath.h>

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

int main(int argc, char **argv)
{
    char publish[64];
    snprintf(publish, sizeof publish, "127.0.0.1:%s:7/udp", argc > 1 ? argv[1] : "7000");
    const char *const ports[] = {publish, NULL};
    struct towpath_options options = {.size = sizeof options, .publish = ports};
    int stack = towpath_stack_open(&options);
    if (stack < 0) {
        fprintf(stderr, "udp_echo: %s\n", towpath_error());
        return 1;
    }
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(7)};
    int fd = towpath_socket(stack, AF_INET, SOCK_DGRAM, 0);
    if (fd < 0 || towpath_bind(fd, (struct sockaddr *)&any, sizeof any) < 0) {
        perror("udp_echo: bind");
        return 1;
    }
    print_address(stack);
    for (;;) {
        char bytes[65536];
        struct sockaddr_in from;
        socklen_t from_len = sizeof from;
        ssize_t len = towpath_recvfrom(fd, bytes, sizeof bytes, 0, (struct sockaddr *)&from,
                                       &from_len);
        if (len < 0) {
            perror("udp_echo: recvfrom");
            return 1;
        }
        /* A full buffer loses datagrams, as the network does. */
        towpath_sendto(fd, bytes, (size_t)len, 0, (struct sockaddr *)&from, from_len);
        if (len == 3 && memcmp(bytes, "end", 3) == 0)
            break;
    }
    if (towpath_stack_close(stack) < 0) {
        perror("udp_echo: close");
        return 1;
    }
    return 0;
}
