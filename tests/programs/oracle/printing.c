/* dprintf and its kin on a socket, with arguments of every class. */
#include "transcript.h"
#include <stdarg.h>

int __dprintf_chk(int fd, int flag, const char *format, ...);
int __vdprintf_chk(int fd, int flag, const char *format, va_list arguments);

static int ends[2];

static int by_list(int fd, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int n = vdprintf(fd, format, arguments);
    va_end(arguments);
    return n;
}

static int by_checked_list(int fd, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int n = __vdprintf_chk(fd, 1, format, arguments);
    va_end(arguments);
    return n;
}

static void received(const char *name, int n) {
    char buffer[1000] = "";
    settled(ends[1], POLLIN);
    long got = recv(ends[1], buffer, sizeof buffer - 1, MSG_DONTWAIT);
    printf("%s: %d %ld <%s>\n", name, n, got, buffer);
}

static void *print_big(void *text) {
    return (void *)(long)dprintf(ends[0], "%s.", (char *)text);
}

int main(void) {
    begin();
    signal(SIGPIPE, SIG_IGN);
    pair(ends);
    int fd = ends[0];
    received("plain", dprintf(fd, "plain\n"));
    received("numbers", dprintf(fd, "%d %s %c %lx", 42, "forty-two", 'x', 0x123456789abcL));
    received("many", dprintf(fd, "%d %d %d %d %d %d %d %d %d %d", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
    received("floating", dprintf(fd, "%.2f %.2f %.2f %.2f %.2f %.2f %.2f %.2f %.2f %.2f", 0.5, 1.5, 2.5, 3.5, 4.5, 5.5,
                                 6.5, 7.5, 8.5, 9.5));
    received("mixed", dprintf(fd, "%d %.1f %s %.1f %d %.1f %d %.1f %d %s", 1, 1.5, "a", 2.5, 2, 3.5, 3, 4.5, 4, "b"));
    received("long double", dprintf(fd, "%.3Lf %d", 1.125L, 7));
    received("checked", __dprintf_chk(fd, 1, "%d %.1f %s %d %d %d %d %.1f", 1, 2.5, "three", 4, 5, 6, 7, 8.5));
    received("list", by_list(fd, "%d %.1f %s %d %d %d %d %.1f", 1, 2.5, "three", 4, 5, 6, 7, 8.5));
    received("checked list", by_checked_list(fd, "%d %.1f %s", 1, 2.5, "three"));
    show("nothing", dprintf(fd, "%s", ""));

    static char big[300000];
    memset(big, 'x', sizeof big - 1);
    pthread_t thread;
    pthread_create(&thread, NULL, print_big, big);
    long total = 0;
    char part[70000];
    while (total < (long)sizeof big) total += must(recv(ends[1], part, sizeof part, 0));
    void *n_big;
    pthread_join(thread, &n_big);
    printf("large: %ld %ld\n", (long)n_big, total);
    shutdown(fd, SHUT_WR);
    show("after shutdown", dprintf(fd, "x"));

    /* Other descriptors. */
    int pipes[2];
    must(pipe(pipes));
    int n = dprintf(pipes[1], "%d %.1f %s", 1, 2.5, "pipe");
    long got = read(pipes[0], part, sizeof part);
    printf("pipe: %d %.*s\n", n, (int)got, part);
    show("closed", dprintf(1000000, "x"));

    /* Positions, which sockets do not have. */
    struct iovec one = {part, 1};
    show("lseek", lseek(ends[1], 0, SEEK_CUR));
    show("pread", pread(ends[1], part, 1, 0));
    show("pread, negative", pread(ends[1], part, 1, -1));
    show("pwrite", pwrite(ends[1], part, 1, 5));
    show("preadv", preadv(ends[1], &one, 1, 0));
    show("pwritev", pwritev(ends[1], &one, 1, 0));
    show("preadv2", preadv2(ends[1], &one, 1, 0, 0));
    show("preadv2, negative", preadv2(ends[1], &one, 1, -2, 0));
    show("preadv2, unknown flag", preadv2(ends[1], &one, 1, -1, 0x4000));
    show("pwritev2, high priority", pwritev2(ends[1], &one, 1, -1, RWF_HIPRI));
    return 0;
}
