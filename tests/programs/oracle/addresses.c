/* sockaddr: lengths and families, of what goes in and what comes out. */
#include "transcript.h"

int main(void) {
    begin();
    struct sockaddr_in four = loopback(0);
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    struct sockaddr_storage big = {0};
    memcpy(&big, &four, sizeof four);

    int fd = must(socket(AF_INET, SOCK_STREAM, 0));
    show("bind, short", bind(fd, (struct sockaddr *)&four, sizeof four - 1));
    show("bind, empty", bind(fd, (struct sockaddr *)&four, 0));
    show("bind, negative length", bind(fd, (struct sockaddr *)&four, (socklen_t)-1));
    show("bind, v6 address on v4", bind(fd, (struct sockaddr *)&six, sizeof six));
    four.sin_family = 77;
    show("bind, unknown family", bind(fd, (struct sockaddr *)&four, sizeof four));
    show("connect, unknown family", connect(fd, (struct sockaddr *)&four, sizeof four));
    four.sin_family = AF_UNIX;
    show("bind, unix family", bind(fd, (struct sockaddr *)&four, sizeof four));
    four.sin_family = AF_INET;
    show("connect, short", connect(fd, (struct sockaddr *)&four, 8));
    show("connect, v6 address on v4", connect(fd, (struct sockaddr *)&six, sizeof six));
    show("bind, longer", bind(fd, (struct sockaddr *)&big, sizeof big));
    int fd6 = must(socket(AF_INET6, SOCK_STREAM, 0));
    show("v6 bind, short", bind(fd6, (struct sockaddr *)&six, 20));
    show("v6 bind, v4 address", bind(fd6, (struct sockaddr *)&four, sizeof four));
    show("v6 bind without scope", bind(fd6, (struct sockaddr *)&six, 24));

    /* What comes back: cut off to the length given, and the true length told. */
    must(listen(fd, 4));
    char buffer[64];
    socklen_t len = 6;
    memset(buffer, 0x55, sizeof buffer);
    show("getsockname, short", getsockname(fd, (struct sockaddr *)buffer, &len));
    printf("true length %u, family %d, rest untouched %d\n", len, *(short *)buffer, buffer[6] == 0x55);
    len = sizeof buffer;
    show("getsockname, long", getsockname(fd, (struct sockaddr *)buffer, &len));
    printf("true length %u\n", len);
    len = (socklen_t)-1;
    show("getsockname, negative", getsockname(fd, (struct sockaddr *)buffer, &len));
    len = 0;
    show("getsockname, none", getsockname(fd, (struct sockaddr *)buffer, &len));
    printf("true length %u\n", len);

    int client = connected(fd);
    len = 4;
    memset(buffer, 0x55, sizeof buffer);
    int server = accept(fd, (struct sockaddr *)buffer, &len);
    printf("accept, short: %d, true length %u, untouched %d\n", server > 0, len, buffer[4] == 0x55);
    struct sockaddr_in peer;
    len = sizeof peer;
    show("getpeername", getpeername(client, (struct sockaddr *)&peer, &len));
    printf("port %d, length %u\n", peer.sin_port == name_of(fd).sin_port, len);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    show("accept, nobody and no address", accept(fd, (struct sockaddr *)buffer, NULL));

    show("setsockopt, negative length", setsockopt(client, SOL_SOCKET, SO_KEEPALIVE, buffer, (socklen_t)-1));

    int udp = bound(SOCK_DGRAM);
    struct sockaddr_in to = name_of(udp);
    show("sendto, short", sendto(udp, "x", 1, 0, (struct sockaddr *)&to, 7));
    show("sendto, v6 address", sendto(udp, "x", 1, 0, (struct sockaddr *)&six, sizeof six));
    show("sendto, no address", sendto(udp, "x", 1, 0, NULL, 0));
    show("sendto", sendto(udp, "x", 1, 0, (struct sockaddr *)&to, sizeof to));
    len = 3;
    show("recvfrom, short", recvfrom(udp, buffer, 10, 0, (struct sockaddr *)&peer, &len));
    printf("true length %u\n", len);
    must(sendto(udp, "x", 1, 0, (struct sockaddr *)&to, sizeof to));
    show("recvfrom, no address", recvfrom(udp, buffer, 10, 0, NULL, NULL));
    struct sockaddr_in none = {.sin_family = AF_UNSPEC};
    show("tcp dissolve", connect(client, (struct sockaddr *)&none, sizeof none));
    len = sizeof peer;
    show("tcp dissolved, peer", getpeername(client, (struct sockaddr *)&peer, &len));
    printf("the other end: %d\n", (settled(server, POLLHUP) & POLLHUP) != 0);
    to = name_of(fd);
    show("tcp connects again", connect(client, (struct sockaddr *)&to, sizeof to));
    return 0;
}
