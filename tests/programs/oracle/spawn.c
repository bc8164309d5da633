/* vfork, posix_spawn and clone: the child's image gets its sockets, the parent keeps its own. */
#include "transcript.h"
#include <spawn.h>

extern char **environ;

static void finish(const char *name, int fd, pid_t pid) {
    char buffer[100];
    ssize_t n, total = 0;
    while ((n = read(fd, buffer + total, sizeof buffer - total)) > 0) total += n;
    int status;
    must(waitpid(pid, &status, 0));
    printf("%s: %.*s, status %d\n", name, (int)total, buffer, WEXITSTATUS(status));
}

static void talk(int fd, const char *text) {
    must(write(fd, text, strlen(text)));
    must(shutdown(fd, SHUT_WR));
}

int main(void) {
    begin();
    int ends[2];
    pair(ends);
    pid_t pid = vfork();
    if (pid == 0) {
        dup2(ends[1], 0);
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        execl("/bin/cat", "cat", NULL);
        _exit(9);
    }
    close(ends[1]);
    talk(ends[0], "by vfork");
    finish("vfork", ends[0], pid);

    pair(ends);
    pid = vfork();
    if (pid == 0) {
        execl("/no/such/program", "x", NULL);
        _exit(9);
    }
    int status;
    waitpid(pid, &status, 0);
    printf("vfork, exec fails: status %d\n", WEXITSTATUS(status));
    talk(ends[0], "unharmed");
    char buffer[100];
    show("the parent's connection", recv(ends[1], buffer, sizeof buffer, 0));

    pair(ends);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    char *arguments[] = {"cat", NULL};
    show("posix_spawnp", posix_spawnp(&pid, "cat", &actions, NULL, arguments, environ));
    close(ends[1]);
    talk(ends[0], "by posix_spawnp");
    finish("posix_spawnp", ends[0], pid);
    printf("posix_spawn of nothing: %s\n", strerrorname_np(posix_spawn(&pid, "/no/such", NULL, NULL, arguments, environ)));

    /* The environment replaced as a whole. */
    pair(ends);
    char *empty[] = {NULL};
    pid = fork();
    if (pid == 0) {
        dup2(ends[1], 0);
        dup2(ends[1], 1);
        close(ends[0]);
        close(ends[1]);
        execve("/bin/cat", arguments, empty);
        _exit(9);
    }
    close(ends[1]);
    talk(ends[0], "by execve");
    finish("fork and execve", ends[0], pid);

    /* Close-on-exec of an inherited number. */
    pair(ends);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    pid = fork();
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", "exec sleep 60", NULL);
        _exit(9);
    }
    close(ends[1]);
    printf("close-on-exec ends it while the child lives: %d\n", recv(ends[0], buffer, 1, 0) == 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);

    /* popen and system in between. */
    pair(ends);
    FILE *stream = popen("echo from popen", "r");
    printf("popen: %s", fgets(buffer, sizeof buffer, stream));
    pclose(stream);
    show("system", system("exit 3") >> 8);
    talk(ends[0], "afterwards");
    show("connection", recv(ends[1], buffer, sizeof buffer, 0));

    /* A thread is in recv while another forks. */
    pair(ends);
    for (int i = 0; i < 10; i++) {
        pid = fork();
        if (pid == 0) {
            write(ends[1], "c", 1);
            _exit(0);
        }
        must(waitpid(pid, NULL, 0));
    }
    int total = 0;
    while (total < 10) total += must(recv(ends[0], buffer, sizeof buffer, 0));
    printf("ten children: %d\n", total);
    return 0;
}
