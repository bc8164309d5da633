/* A program in a chroot in which is nothing but libraries, a shell and itself: no /proc, no /etc, no /tmp. With an
   argument the folder of the library that it was started with is left out, too, if there is one. */
#include "transcript.h"
#include <net/if.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>

extern char **environ;

/* The same path in the root, with the folders on the way. */
static const char *inside(const char *root, const char *path) {
    static char to[4096];
    snprintf(to, sizeof to, "%s%s", root, path);
    for (char *slash = to + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(to, 0755);
        *slash = '/';
    }
    return to;
}

static void bring(const char *root, const char *path) {
    struct stat it;
    char target[4096] = "";
    if (lstat(path, &it) == -1) return;
    if (S_ISLNK(it.st_mode)) {
        must(readlink(path, target, sizeof target - 1));
        must(symlink(target, inside(root, path)));
        return;
    }
    const char *to = inside(root, path);
    if (S_ISDIR(it.st_mode)) must(mkdir(to, 0755));
    else close(must(open(to, O_CREAT | O_WRONLY, 0755)));
    must(mount(path, to, NULL, MS_BIND | MS_REC, NULL));
}

static void write_to(const char *path, const char *format, int id) {
    int file = must(open(path, O_WRONLY));
    must(dprintf(file, format, id, id));
    close(file);
}

static void enter(const char *root, int with_library) {
    if (unshare(CLONE_NEWNS) == -1) {
        int user = geteuid(), group = getegid();
        must(unshare(CLONE_NEWUSER | CLONE_NEWNS));
        /* Without a place there the user owns nothing, and can make no files. */
        write_to("/proc/self/setgroups", "deny", 0);
        write_to("/proc/self/uid_map", "%d %d 1", user);
        write_to("/proc/self/gid_map", "%d %d 1", group);
    }
    must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
    char self[4096] = "", library[4096] = "";
    must(readlink("/proc/self/exe", self, sizeof self - 1));
    if (getenv("LD_PRELOAD")) {
        /* The first of them. */
        snprintf(library, sizeof library, "%s", getenv("LD_PRELOAD"));
        library[strcspn(library, ": ")] = 0;
    }
    must(mount("tmpfs", root, "tmpfs", 0, NULL));
    const char *folders[] = {"/bin", "/lib", "/lib64", "/usr"};
    for (int i = 0; i < 4; i++) bring(root, folders[i]);
    if (library[0] && with_library) bring(root, library);
    close(must(open(inside(root, "/program"), O_CREAT | O_WRONLY, 0755)));
    must(mount(self, inside(root, "/program"), NULL, MS_BIND, NULL));
    show("chroot", chroot(root));
    must(chdir("/"));
    show("/proc", access("/proc", F_OK));
    show("/etc", access("/etc", F_OK));
}

static void send_descriptor(int channel, int fd) {
    char byte = 'x', space[CMSG_SPACE(sizeof fd)] = "";
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *control = CMSG_FIRSTHDR(&message);
    *control = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(control), &fd, sizeof fd);
    must(sendmsg(channel, &message, 0));
}

static int receive_descriptor(int channel) {
    char byte, space[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    must(recvmsg(channel, &message, 0));
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* What comes, up to the end. */
static void all(const char *name, int fd) {
    char text[200];
    ssize_t n, len = 0;
    while ((n = read(fd, text + len, sizeof text - len)) > 0) len += n;
    printf("%s: %.*s, then %s\n", name, (int)len, text, n == 0 ? "the end" : strerrorname_np(errno));
}

static void say(int fd, const char *text) { must(write(fd, text, strlen(text))); }

static void ended(const char *name, pid_t pid) {
    int status;
    must(waitpid(pid, &status, 0));
    printf("%s ended: %d\n", name, status);
}

/* A connection with itself, bytes and datagrams. */
static void new_sockets(const char *who) {
    int ends[2];
    pair(ends);
    say(ends[0], "a new connection");
    close(ends[0]);
    all(who, ends[1]);
    close(ends[1]);
    int fd = bound(SOCK_DGRAM);
    struct sockaddr_in name = name_of(fd);
    must(sendto(fd, "datagram", 8, 0, (struct sockaddr *)&name, sizeof name));
    char text[20];
    show("datagram", recv(fd, text, sizeof text, 0));
    close(fd);
}

static void look(int fd) {
    char path[64], target[64];
    struct stat it;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    must(fstat(fd, &it));
    printf("it is a socket: %d\n", S_ISSOCK(it.st_mode));
    show("stat by /proc", stat(path, &it));
    show("readlink by /proc", readlink(path, target, sizeof target));
    show("settings of the resolver", open("/etc/resolv.conf", O_RDONLY));
    printf("interface: %u\n", if_nametoindex("lo"));
}

/* This program once more. */
static int image(int fd, int closed) {
    printf("image without /proc: %d\n", access("/proc", F_OK) == -1);
    show("image writes", write(fd, "from an image", 13));
    show("close-on-exec", write(closed, "x", 1));
    new_sockets("image");
    return 7;
}

static void executes(void) {
    int ends[2], closed[2];
    char number[2][12];
    char *arguments[] = {"program", "image", number[0], number[1], NULL};
    pair(closed);
    for (int way = 0; way < 3; way++) {
        pair(ends);
        fcntl(ends[0], F_SETFD, FD_CLOEXEC);
        fcntl(closed[0], F_SETFD, FD_CLOEXEC);
        snprintf(number[0], 12, "%d", ends[1]);
        snprintf(number[1], 12, "%d", closed[0]);
        pid_t pid = -1;
        if (way == 1) {
            int error = posix_spawn(&pid, "/program", NULL, NULL, arguments, environ);
            /* The image says something, too: after it has. */
            if (pid > 0) ended("image", pid);
            show("posix_spawn", error);
        } else if ((pid = fork()) == 0) {
            if (way == 0) show("exec", execv("/program", arguments));
            else show("fexecve", fexecve(must(open("/program", O_RDONLY | O_CLOEXEC)), arguments, environ));
            _exit(3);
        }
        close(ends[1]);
        if (pid > 0 && way != 1) ended("image", pid);
        all("from the image", ends[0]);
        close(ends[0]);
    }
    FILE *stream = popen("echo a shell", "r");
    char text[20] = "";
    printf("popen: %s", stream && fgets(text, sizeof text, stream) ? text : "nothing\n");
    if (stream) pclose(stream);
}

static void in_chroot(int before, int channel) {
    say(before, "from the chroot");
    shutdown(before, SHUT_WR);
    all("a connection of before", before);
    new_sockets("here");
    look(before);

    int ends[2];
    pair(ends);
    printf("poll: %x\n", settled(ends[0], POLLOUT));
    pid_t pid = fork();
    if (pid == 0) {
        say(ends[1], "from a child");
        new_sockets("child");
        _exit(0);
    }
    close(ends[1]);
    ended("child", pid);
    all("a child's", ends[0]);

    /* To a process outside, and from it. */
    pair(ends);
    send_descriptor(channel, ends[1]);
    close(ends[1]);
    all("from outside", ends[0]);
    int fd = receive_descriptor(channel);
    say(fd, "by a received one");
    close(fd);
    executes();
}

int main(int count, char **arguments) {
    begin();
    if (count == 4) return image(atoi(arguments[2]), atoi(arguments[3]));
    int before[2], given[2], channel[2];
    pair(before);
    pair(given);
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    char root[] = "/tmp/towpath-chroot-XXXXXX";
    if (!mkdtemp(root)) return 1;
    pid_t pid = fork();
    if (pid == 0) {
        close(before[0]);
        close(given[0]);
        close(given[1]);
        close(channel[0]);
        enter(root, count == 1);
        in_chroot(before[1], channel[1]);
        _exit(0);
    }
    close(before[1]);
    close(channel[1]);
    say(before[0], "from outside");
    shutdown(before[0], SHUT_WR);
    int fd = receive_descriptor(channel[0]);
    say(fd, "by one who is outside");
    close(fd);
    send_descriptor(channel[0], given[1]);
    close(given[1]);
    ended("chroot", pid);
    all("outside, before", before[0]);
    all("outside, given", given[0]);
    rmdir(root);
    return 0;
}
