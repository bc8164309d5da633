/* What a program can learn about a descriptor: is it a socket, which, and whose. */
#include "transcript.h"
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <net/if.h>

static void kind(const char *name, int mode, long size, long nlink, long blksize) {
    printf("%s: %s mode %o size %ld links %ld block %ld\n", name, S_ISSOCK(mode) ? "socket" : "no socket", mode & 07777, size,
           nlink, blksize);
}

static void look(const char *what, int fd) {
    struct stat st, again;
    struct statx sx;
    char path[64], target[64], wanted[64];
    printf("-- %s\n", what);
    memset(&st, 0, sizeof st);
    show("fstat", fstat(fd, &st));
    kind("fstat", st.st_mode, st.st_size, st.st_nlink, st.st_blksize);
    printf("owner: %d %d\n", st.st_uid == getuid(), st.st_gid == getgid());
    int twin = dup(fd);
    fstat(twin, &again);
    printf("a duplicate is the same: %d\n", again.st_ino == st.st_ino && again.st_dev == st.st_dev);
    close(twin);
    memset(&st, 0, sizeof st);
    show("fstatat", fstatat(fd, "", &st, AT_EMPTY_PATH));
    kind("fstatat", st.st_mode, st.st_size, st.st_nlink, st.st_blksize);
    show("statx", statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &sx));
    kind("statx", sx.stx_mode, sx.stx_size, sx.stx_nlink, sx.stx_blksize);
    printf("one inode: %d\n", sx.stx_ino == again.st_ino && st.st_ino == again.st_ino);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    memset(&st, 0, sizeof st);
    show("stat of /proc/self/fd", stat(path, &st));
    kind("stat", st.st_mode, st.st_size, st.st_nlink, st.st_blksize);
    memset(target, 0, sizeof target);
    ssize_t n = readlink(path, target, sizeof target - 1);
    snprintf(wanted, sizeof wanted, "socket:[%lu]", (unsigned long)again.st_ino);
    printf("readlink: %.8s, the inode: %d\n", n > 0 ? target : "", !strcmp(target, wanted));
    show("open of /proc/self/fd", open(path, O_RDWR));
    show("isatty", isatty(fd));
    show("fsync", fsync(fd));
    show("fdatasync", fdatasync(fd));
    show("ftruncate", ftruncate(fd, 0));
    show("fallocate", fallocate(fd, 0, 0, 10));
    show("lseek", lseek(fd, 0, SEEK_SET));
    show("fchdir", fchdir(fd));
    show("F_GETFL", fcntl(fd, F_GETFL));
    show("F_GETPIPE_SZ", fcntl(fd, F_GETPIPE_SZ));
    show("F_SETLEASE", fcntl(fd, F_SETLEASE, F_RDLCK));
    show("F_GET_SEALS", fcntl(fd, F_GET_SEALS));
    show("F_DUPFD", fcntl(fd, F_DUPFD, 5000) == 5000 ? 0 : -1);
    close(5000);
    show("unknown fcntl", fcntl(fd, 7777, 0));
    show("posix_fadvise", posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL));
    struct winsize size;
    show("TIOCGWINSZ", ioctl(fd, TIOCGWINSZ, &size));
    show("unknown ioctl", ioctl(fd, 0x12345678, &size));
}

int main(void) {
    begin();
    int tcp = must(socket(AF_INET, SOCK_STREAM, 0)), udp = must(socket(AF_INET6, SOCK_DGRAM, 0));
    struct stat a, b;
    look("TCP", tcp);
    look("UDP", udp);
    look("listener", listener(3));
    must(fstat(tcp, &a));
    must(fstat(udp, &b));
    printf("two sockets, two inodes: %d, one device: %d\n", a.st_ino != b.st_ino, a.st_dev == b.st_dev);
    int local[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, local));
    must(fstat(local[0], &b));
    printf("the device of all sockets: %d\n", a.st_dev == b.st_dev);
    struct if_nameindex *names = if_nameindex();
    printf("interface %u is %s\n", names[0].if_index, names[0].if_name);
    if_freenameindex(names);
    if (fork() == 0) {
        must(fstat(tcp, &b));
        printf("the child sees the same: %d\n", a.st_ino == b.st_ino);
        exit(0);
    }
    wait(NULL);
    return 0;
}
