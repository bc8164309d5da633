/* An echo over the loopback, for builds with sanitizers. All sockets are closed at the end. */
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
int main(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    char bytes[2];
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&at, len) || listen(listener, 1)) return 1;
    if (getsockname(listener, (void *)&at, &len) || connect(client, (void *)&at, len)) return 2;
    int server = accept(listener, NULL, NULL);
    if (write(client, "hi", 2) != 2 || read(server, bytes, 2) != 2) return 3;
    close(server);
    close(client);
    close(listener);
    puts("echoed");
}
