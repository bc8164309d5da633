/* A worker that forbids itself all but a few system calls (seccomp), as sshd's and browsers' do, goes on
   reading, writing and waiting on sockets that it has. */
#include "transcript.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define ALLOW(name)                                             \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1),      \
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void forbid(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read), ALLOW(write), ALLOW(poll), ALLOW(ppoll), ALLOW(futex), ALLOW(close), ALLOW(shutdown),
        ALLOW(getpid), ALLOW(clock_gettime), ALLOW(brk), ALLOW(mmap), ALLOW(munmap), ALLOW(exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {.len = sizeof rules / sizeof *rules, .filter = rules};
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

/* What an event loop does: never sleeps in a read or a write. */
static void echo(int fd) {
    char buffer[65536];
    struct pollfd p = {.fd = fd};
    for (;;) {
        p.events = POLLIN;
        if (poll(&p, 1, 5000) != 1) _exit(3);
        ssize_t n = read(fd, buffer, sizeof buffer);
        if (n == 0) break;
        for (ssize_t done = 0; done < n;) {
            p.events = POLLOUT;
            if (poll(&p, 1, 5000) != 1) _exit(4);
            ssize_t put = write(fd, buffer + done, n - done);
            if (put > 0) done += put;
            else if (errno != EAGAIN) _exit(5);
        }
    }
    close(fd);
    _exit(0);
}

int main(void) {
    begin();
    int ends[2];
    pair(ends);
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        forbid();
        echo(ends[1]);
    }
    close(ends[1]);
    static char sent[300000], back[sizeof sent];
    for (size_t i = 0; i < sizeof sent; i++) sent[i] = i * 7 + i / 251;
    for (int round = 0; round < 20; round++) {
        size_t want = round < 10 ? 100 : sizeof sent / 3;
        pid_t writer = fork();
        if (writer == 0) {
            for (size_t done = 0; done < want;) done += must(write(ends[0], sent + done, want - done));
            _exit(0);
        }
        size_t got = 0;
        while (got < want) {
            ssize_t n = must(read(ends[0], back + got, want - got));
            if (n == 0) break;
            got += n;
        }
        if (got != want || memcmp(sent, back, want)) printf("round %d: %zu of %zu\n", round, got, want);
        waitpid(writer, NULL, 0);
    }
    show("shutdown", shutdown(ends[0], SHUT_WR));
    show("end", read(ends[0], back, 1));
    int status = 0;
    waitpid(child, &status, 0);
    printf("child: exit %d signal %d\n", WEXITSTATUS(status), WTERMSIG(status));
    return 0;
}
