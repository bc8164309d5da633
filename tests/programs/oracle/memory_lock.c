/* mlockall(2): results, limits, and the memory that is locked. */
#include "transcript.h"
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define PAGE 4096L
#define MB (1L << 20)

static void limit(long bytes) {
    struct rlimit limit;
    must(getrlimit(RLIMIT_MEMLOCK, &limit));
    limit.rlim_cur = bytes;
    must(setrlimit(RLIMIT_MEMLOCK, &limit));
}

/* With CAP_IPC_LOCK, RLIMIT_MEMLOCK does not count. */
static void privileged(int on) {
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    must(syscall(SYS_capget, &head, data));
    if (on) data[0].effective |= 1 << CAP_IPC_LOCK;
    else data[0].effective &= ~(1 << CAP_IPC_LOCK);
    must(syscall(SYS_capset, &head, data));
}

static long field(const char *name) {
    char line[256];
    long kb = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name))) kb = atol(line + strlen(name));
    if (f) fclose(f);
    return kb;
}

/* The size depends on libc, on the loaded libraries, and on threads of an engine in the process. */
static void locked(const char *when) {
    long kb = field("VmLck:");
    printf("%s: locked %s\n", when, kb == 0 ? "nothing" : kb < 512 * 1024 ? "some MB" : "too much");
}

static char *map(long len) {
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        printf("mmap of %ld KB: %s\n", len / 1024, strerrorname_np(errno));
        return NULL;
    }
    return at;
}

static void resident(const char *what, char *at, long len) {
    unsigned char pages[256];
    int n = 0;
    must(mincore(at, len, pages));
    for (long page = 0; page < len / PAGE; page++) n += pages[page] & 1;
    printf("%s: %s resident\n", what, n == 0 ? "none" : n == len / PAGE ? "all" : "some");
}

static void echo(void) {
    int ends[2];
    char bytes[4] = "";
    pair(ends);
    must(send(ends[0], "abc", 3, 0));
    show("recv", recv(ends[1], bytes, 3, MSG_WAITALL));
    close(ends[0]);
    close(ends[1]);
}

static void all_flags(void) {
    for (int flags = -1; flags <= 8; flags++) {
        char name[32], *at = map(MB);
        snprintf(name, sizeof name, "flags %d", flags);
        show(name, mlockall(flags));
        resident("mapped before", at, MB);
        locked(name);
        munmap(at, MB);
        at = map(MB);
        resident("mapped after", at, MB);
        munmap(at, MB);
        echo();
    }
    show("munlockall", munlockall());
    locked("munlockall");
}

int main(void) {
    begin();
    echo();
    privileged(0);
    limit(0);
    show("limit of 0", mlockall(MCL_CURRENT));
    show("limit of 0, future", mlockall(MCL_FUTURE));
    limit(64 * 1024);
    show("limit of 64 KB", mlockall(MCL_CURRENT));
    show("limit of 64 KB, on fault", mlockall(MCL_CURRENT | MCL_ONFAULT));
    locked("after failing");
    show("limit of 64 KB, future", mlockall(MCL_FUTURE));
    map(MB);
    munlockall();
    limit(7 * MB);
    int result = mlockall(MCL_CURRENT | MCL_FUTURE);
    printf("limit of 7 MB: %d\n", result);
    /* Where it fails because of memory that is not the program's, it would allocate all of that. */
    if (result) return 1;
    locked("limit of 7 MB");
    map(7 * MB);
    fflush(stdout);
    pid_t child = must(fork());
    if (child == 0) {
        locked("child");
        char *at = map(MB);
        resident("child's memory", at, MB);
        show("child", mlockall(MCL_CURRENT));
        locked("child");
        exit(0);
    }
    waitpid(child, NULL, 0);
    all_flags();
    privileged(1);
    limit(0);
    all_flags();
    show("by number", syscall(SYS_mlockall, MCL_CURRENT));
    locked("by number");
    show("munlockall by number", syscall(SYS_munlockall));
    locked("munlockall by number");
    return 0;
}
