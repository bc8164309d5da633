/* Sends a megabyte to 10.0.2.2 and exits at once, while a thread waits. The bytes arrive. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <towpath.h>

static int fd;

static void *waits(void *unused)
{
    char byte;
    towpath_recv(fd, &byte, 1, 0);
    /* The end of the stack with the process is no error of a call. */
    fprintf(stderr, "recv has returned: %s\n", strerror(errno));
    _Exit(1);
    return unused;
}

int main(int argc, char **argv)
{
    static char bytes[1 << 20];
    struct sockaddr_in server = {.sin_family = AF_INET};
    CHECK(argc == 2 && inet_pton(AF_INET, "10.0.2.2", &server.sin_addr) == 1);
    server.sin_port = htons((uint16_t)atoi(argv[1]));
    int stack = towpath_stack_open(NULL);
    fd = towpath_socket(stack, AF_INET, SOCK_STREAM, 0);
    WORKS(towpath_connect(fd, (struct sockaddr *)&server, sizeof server));
    pthread_t thread;
    WORKS(pthread_create(&thread, NULL, waits, NULL));
    CHECK(towpath_send(fd, bytes, sizeof bytes, 0) == sizeof bytes);
    return 0;
}
