// Asks nameservers by all functions of resolver(3), and prints every byte of the answers.
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned char answer[70000];

// The identifier of a message is left out, and so is what no answer has written.
static void print(const char *what, int n, int len, int error) {
    // Where a server has told why, errno is anything.
    int code = len < 4 || answer[3] == 0xee ? -1 : answer[3] & 15;
    printf("%s: %d h_errno %d", what, n, h_errno);
    if (n < 0 && code <= 0)
        printf(" errno %d", error);
    if (n < 0)
        printf(" code %d", code);
    int there = n > len ? len : n;
    for (int i = 0; i < there; i++)
        printf(i == 0 || i == 12 ? " %02x" : "%02x", i < 2 ? 0 : answer[i]);
    printf("\n");
}

#define ASK(len, call) \
    do { \
        memset(answer, 0xee, sizeof answer); \
        h_errno = 77; \
        errno = 0; \
        int got = call; \
        print(#call, got, len, errno); \
    } while (0)

// What nobody answers.
#define ASK_IN_VAIN(state, len, call) \
    do { \
        int before = (state).retrans; \
        (state).retrans = 1; \
        ASK(len, call); \
        (state).retrans = before; \
    } while (0)

#define ROOM 4096
#define Q(name, type) ASK(ROOM, res_query(name, C_IN, type, answer, ROOM))
#define S(name, type) ASK(ROOM, res_search(name, C_IN, type, answer, ROOM))

static void known(void) {
    Q("name.example", T_A);
    Q("NAME.example.", T_A);
    Q("name.example", T_AAAA);
    Q("name.example", T_MX);
    Q("name.example", T_TXT);
    Q("_sip._tcp.name.example", T_SRV);
    Q("name.example", 44);
    Q("alias.example", T_A);
    Q("alias.example", T_MX);
    Q("big.example", T_A);
    Q("cut.example", T_A);
    Q("echo.example", T_TXT);
    ASK(ROOM, res_query("echo.example", C_CHAOS, T_TXT, answer, ROOM));
    Q("x.y\\\\z.example", T_A);
    Q("x.y\\092z.example", T_A);
    Q("", T_A);
    Q(".", T_A);
}

static void failed(void) {
    Q("missing.example", T_A);
    Q("empty.example", T_A);
    Q("name.example", T_SRV);
    Q("servfail.example", T_A);
    Q("refused.example", T_A);
    Q("notimp.example", T_A);
    Q("formerr.example", T_A);
    Q("yxdomain.example", T_A);
    Q("referral.example", T_A);
    ASK_IN_VAIN(_res, ROOM, res_query("mute.example", C_IN, T_A, answer, ROOM));
    Q("a..b", T_A);
    Q("a\\", T_A);
    Q("a.\\999", T_A);
    Q("bad name.example", T_A);
    char label[80];
    memset(label, 'x', 64);
    strcpy(label + 64, ".example");
    Q(label, T_A);
    char name[300];
    for (int i = 0; i < 255; i++)
        name[i] = i % 50 == 49 ? '.' : 'y';
    name[254] = 0;
    Q(name, T_A);
}

static void rooms(void) {
    static const int sizes[] = {0, 5, 11, 40, 62, 100, 512, 1000, 1300};
    static const char *names[] = {"name.example", "cut.example", "big.example", "missing.example"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int j = 0; j < 4; j++) {
            printf("%d %s ", sizes[i], names[j]);
            ASK(sizes[i], res_query(names[j], C_IN, T_A, answer, sizes[i]));
        }
}

static void searched(void) {
    S("a", T_A);
    S("a.b", T_A);
    S("top", T_A);
    S("top.", T_A);
    S("missing", T_A);
    S("empty", T_A);
    S("name.example", T_A);
    S("missing.example", T_A);
    S("servfail", T_A);
    S("notimp", T_A);
    ASK_IN_VAIN(_res, ROOM, res_search("mute", C_IN, T_A, answer, ROOM));
    S("", T_A);
    S(".", T_A);
    S("nick", T_A);
    S("NICK", T_A);
    S("nick.", T_A);
    Q("nick", T_A);
    ASK(ROOM, res_querydomain("name", "example", C_IN, T_A, answer, ROOM));
    ASK(ROOM, res_querydomain("name.example.", NULL, C_IN, T_A, answer, ROOM));
    ASK(ROOM, res_querydomain("name", "example.", C_IN, T_A, answer, ROOM));
    ASK(ROOM, res_querydomain("missing", "example", C_IN, T_A, answer, ROOM));
}

static void optioned(const char *what, unsigned long on, unsigned long off) {
    struct __res_state state;
    memset(&state, 0, sizeof state);
    printf("%s: res_ninit %d\n", what, res_ninit(&state));
    state.options = (state.options | on) & ~off;
    ASK(ROOM, res_nquery(&state, "echo.example", C_IN, T_TXT, answer, ROOM));
    printf("  %d\n", state.res_h_errno);
    ASK(600, res_nquery(&state, "echo.example", C_IN, T_TXT, answer, 600));
    ASK(100, res_nquery(&state, "echo.example", C_IN, T_TXT, answer, 100));
    ASK(ROOM, res_nquery(&state, "cut.example", C_IN, T_A, answer, ROOM));
    ASK_IN_VAIN(state, ROOM, res_nquery(&state, "edns.example", C_IN, T_A, answer, ROOM));
    ASK(ROOM, res_nquery(&state, "servfail.example", C_IN, T_A, answer, ROOM));
    printf("  %d\n", state.res_h_errno);
    ASK(ROOM, res_nsearch(&state, "a", C_IN, T_A, answer, ROOM));
    ASK(ROOM, res_nsearch(&state, "a.b", C_IN, T_A, answer, ROOM));
    ASK(ROOM, res_nsearch(&state, "nick", C_IN, T_A, answer, ROOM));
    ASK(ROOM, res_nquerydomain(&state, "a.b", "second.example", C_IN, T_A, answer, ROOM));
    res_nclose(&state);
}

// Messages of the program's own making.
static void sent(void) {
    unsigned char q[600];
    int n = res_mkquery(QUERY, "name.example", C_IN, T_MX, NULL, 0, NULL, q, sizeof q);
    printf("res_mkquery %d\n", n);
    ASK(ROOM, res_send(q, n, answer, ROOM));
    printf("  %d\n", memcmp(q, answer, 2));
    ASK(40, res_send(q, n, answer, 40));
    ASK(5, res_send(q, n, answer, 5));
    ASK_IN_VAIN(_res, ROOM, res_send(q, 5, answer, ROOM));
    n = res_mkquery(QUERY, "servfail.example", C_IN, T_MX, NULL, 0, NULL, q, sizeof q);
    ASK(ROOM, res_send(q, n, answer, ROOM));
    n = res_mkquery(QUERY, "missing.example", C_IN, T_MX, NULL, 0, NULL, q, sizeof q);
    ASK(ROOM, res_send(q, n, answer, ROOM));
    n = res_mkquery(QUERY, "mute.example", C_IN, T_MX, NULL, 0, NULL, q, sizeof q);
    ASK_IN_VAIN(_res, ROOM, res_send(q, n, answer, ROOM));
    // Longer than a datagram: by TCP.
    n = res_mkquery(QUERY, "name.example", C_IN, T_A, NULL, 0, NULL, q, sizeof q);
    memset(q + n, 0, sizeof q - n);
    ASK(ROOM, res_send(q, 600, answer, ROOM));
    // dig's way: failures of servers are answers.
    struct __res_state state;
    memset(&state, 0, sizeof state);
    res_ninit(&state);
    state.pfcode = RES_PRF_HEAD1;
    n = res_nmkquery(&state, QUERY, "servfail.example", C_IN, T_MX, NULL, 0, NULL, q, sizeof q);
    ASK(ROOM, res_nsend(&state, q, n, answer, ROOM));
    state.nscount = 0;
    ASK(ROOM, res_nsend(&state, q, n, answer, ROOM));
    res_nclose(&state);
}

// Nameservers that the program has put there: SECONDS/ADDRESS,ADDRESS.
static void elsewhere(const char *list) {
    struct __res_state state;
    memset(&state, 0, sizeof state);
    res_ninit(&state);
    state.retrans = atoi(list);
    state.retry = 1;
    state.nscount = 0;
    char *copy = strdup(strchr(list, '/') + 1);
    for (char *at = strtok(copy, ","); at; at = strtok(NULL, ",")) {
        struct sockaddr_in *to = &state.nsaddr_list[state.nscount++];
        memset(to, 0, sizeof *to);
        to->sin_family = AF_INET;
        to->sin_port = htons(53);
        inet_pton(AF_INET, at, &to->sin_addr);
    }
    free(copy);
    printf("servers %s\n", list);
    ASK(ROOM, res_nquery(&state, "name.example", C_IN, T_A, answer, ROOM));
    ASK(ROOM, res_nquery(&state, "missing.example", C_IN, T_A, answer, ROOM));
    ASK(ROOM, res_nquery(&state, "servfail.example", C_IN, T_A, answer, ROOM));
    ASK(ROOM, res_nquery(&state, "cut.example", C_IN, T_A, answer, ROOM));
    state.options |= RES_USEVC;
    ASK(ROOM, res_nquery(&state, "name.example", C_IN, T_A, answer, ROOM));
    res_nclose(&state);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    known();
    failed();
    rooms();
    searched();
    optioned("none", 0, 0);
    optioned("edns", RES_USE_EDNS0, 0);
    optioned("dnssec", RES_USE_DNSSEC, 0);
    optioned("edns dnssec trustad", RES_USE_EDNS0 | RES_USE_DNSSEC | RES_TRUSTAD, 0);
    optioned("vc", RES_USEVC, 0);
    optioned("stay open", RES_USEVC | RES_STAYOPEN, 0);
    optioned("igntc", RES_IGNTC, 0);
    optioned("no recurse", 0, RES_RECURSE);
    optioned("no search", 0, RES_DNSRCH);
    optioned("no domain", 0, RES_DEFNAMES);
    optioned("neither", 0, RES_DEFNAMES | RES_DNSRCH);
    optioned("no top", RES_NOTLDQUERY, 0);
    optioned("no aliases", RES_NOALIASES, 0);
    sent();
    for (int i = 1; i < argc; i++)
        elsewhere(argv[i]);
    _res.options |= RES_USE_EDNS0;
    Q("echo.example", T_TXT);
    printf("res_init %d\n", res_init());
    _res.options |= RES_USE_DNSSEC;
    Q("echo.example", T_TXT);
    printf("servers %d\n", _res.nscount);
    return 0;
}
