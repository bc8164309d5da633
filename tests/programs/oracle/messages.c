/* sendmmsg, recvmmsg, sendmsg and recvmsg in their corners. */
#include "transcript.h"

enum { N = 5 };

static char space[N][16];
static struct iovec parts[N];
static struct mmsghdr messages[N];
static struct sockaddr_in names[N];

static void prepare(size_t len) {
    memset(space, 0, sizeof space);
    for (int i = 0; i < N; i++) {
        parts[i] = (struct iovec){space[i], len};
        messages[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[i], .msg_iovlen = 1}};
    }
}

static void print_lengths(int n) {
    for (int i = 0; i < n; i++) printf(" %u%s", messages[i].msg_len, messages[i].msg_hdr.msg_flags & MSG_TRUNC ? "(cut)" : "");
    printf("\n");
}

int main(void) {
    begin();
    int a = bound(SOCK_DGRAM), b = bound(SOCK_DGRAM);
    struct sockaddr_in to = name_of(b);

    prepare(10);
    for (int i = 0; i < N; i++) {
        parts[i].iov_len = 3 * i;
        messages[i].msg_hdr.msg_name = &to;
        messages[i].msg_hdr.msg_namelen = sizeof to;
    }
    show("sendmmsg", sendmmsg(a, messages, N, 0));
    print_lengths(N);
    nap(100);
    prepare(10);
    for (int i = 0; i < N; i++) {
        messages[i].msg_hdr.msg_name = &names[i];
        messages[i].msg_hdr.msg_namelen = sizeof names[i];
    }
    show("recvmmsg", recvmmsg(b, messages, N, 0, NULL));
    print_lengths(N);
    printf("sender %d, length %u\n", names[2].sin_port == name_of(a).sin_port, messages[2].msg_hdr.msg_namelen);
    prepare(10);
    show("recvmmsg, nothing", recvmmsg(b, messages, N, MSG_DONTWAIT, NULL));
    for (int i = 0; i < 2; i++) must(sendto(a, "hello", 5, 0, (struct sockaddr *)&to, sizeof to));
    nap(100);
    show("recvmmsg, what is there", recvmmsg(b, messages, N, MSG_DONTWAIT, NULL));
    must(sendto(a, "hello", 5, 0, (struct sockaddr *)&to, sizeof to));
    show("recvmmsg, wait for one", recvmmsg(b, messages, N, MSG_WAITFORONE, NULL));
    show("recvmmsg of none", recvmmsg(b, messages, 0, 0, NULL));
    show("sendmmsg of none", sendmmsg(a, messages, 0, 0));
    prepare(10);
    show("sendmmsg without a peer", sendmmsg(a, messages, N, 0));
    must(connect(a, (struct sockaddr *)&to, sizeof to));
    show("sendmmsg, connected", sendmmsg(a, messages, N, 0));
    messages[2].msg_hdr.msg_iovlen = 2000;
    show("sendmmsg, the third is bad", sendmmsg(a, messages, N, 0));
    nap(100);
    prepare(4);
    show("recvmmsg, too short", recvmmsg(b, messages, N, 0, NULL));
    print_lengths(N);
    struct timespec none = {0, 0};
    show("recvmmsg with a timeout", recvmmsg(b, messages, 1, 0, &none));

    int ends[2];
    pair(ends);
    prepare(10);
    for (int i = 0; i < N; i++) memcpy(space[i], "0123456789", 10);
    show("tcp sendmmsg", sendmmsg(ends[0], messages, N, 0));
    nap(100);
    prepare(15);
    show("tcp recvmmsg", recvmmsg(ends[1], messages, N, MSG_DONTWAIT, NULL));
    print_lengths(4);

    /* msg_flags, msg_namelen and msg_controllen of a stream. */
    char buffer[32], control[64];
    struct iovec part = {buffer, sizeof buffer};
    struct sockaddr_in name;
    must(send(ends[0], "x", 1, 0));
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_name = &name, .msg_namelen = sizeof name,
                             .msg_control = control, .msg_controllen = sizeof control, .msg_flags = 0x7777};
    show("tcp recvmsg", recvmsg(ends[1], &message, 0));
    printf("namelen %u controllen %zu flags %d\n", message.msg_namelen, message.msg_controllen, message.msg_flags);
    shutdown(ends[0], SHUT_WR);
    message.msg_controllen = sizeof control;
    show("tcp recvmsg at the end", recvmsg(ends[1], &message, 0));
    printf("flags %d\n", message.msg_flags);

    /* readv, writev, preadv2 of sockets. */
    pair(ends);
    struct iovec two[2] = {{"ab", 2}, {"cd", 2}};
    show("pwritev2", pwritev2(ends[0], two, 2, -1, 0));
    settled(ends[1], POLLIN);
    struct iovec in[2] = {{buffer, 1}, {buffer + 1, 20}};
    show("preadv2", preadv2(ends[1], in, 2, -1, 0));
    printf("%.4s\n", buffer);
    show("preadv2, not waiting", preadv2(ends[1], in, 2, -1, RWF_NOWAIT));
    show("preadv", preadv(ends[1], in, 2, 0));
    volatile int negative = -1;
    show("writev, negative count", writev(ends[0], two, negative));
    struct iovec huge = {buffer, (size_t)-1};
    show("writev, negative length", writev(ends[0], &huge, 1));
    return 0;
}
