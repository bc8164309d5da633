/* fork while another thread opens and closes connections: the child has what its table has, no more and
   no less. */
#include "transcript.h"
#include <stdatomic.h>
#include <sys/mman.h>

#define FORKS 150
#define THREADS 2
static atomic_int current[THREADS]; /* An end of a connection that is open, or -1. */
static atomic_int stop;
static atomic_long rounds[THREADS];

static void *open_and_close(void *mine) {
    atomic_int *shown = mine;
    int waiting = listener(16);
    while (!stop) {
        int client = connected(waiting), server = must(accept(waiting, NULL, NULL));
        *shown = server;
        sched_yield();
        *shown = -1;
        close(server);
        char byte;
        /* For ever, if a child has the other end, too. */
        while (must(recv(client, &byte, 1, 0)) > 0) {}
        close(client);
        rounds[shown - current]++;
    }
    close(waiting);
    return NULL;
}

/* Whatever was open when it was forked is open here, though the parent has closed it long since. */
static int child(void) {
    int works = 1;
    nap(20);
    for (int i = 0; i < THREADS; i++) {
        /* Linux copies descriptors and memory one after the other: it may be closed after all. */
        if (current[i] == -1 || fcntl(current[i], F_GETFD) == -1) continue;
        works &= send(current[i], "x", 1, MSG_NOSIGNAL) == 1;
    }
    close_range(3, ~0u, 0);
    sigset_t set;
    int number;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigwait(&set, &number);
    return works;
}

int main(void) {
    begin();
    /* The signal that ends the children. */
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_t threads[THREADS];
    pid_t children[FORKS];
    for (int i = 0; i < THREADS; i++) {
        current[i] = -1;
        pthread_create(&threads[i], NULL, open_and_close, &current[i]);
    }
    nap(20);
    for (int i = 0; i < FORKS; i++) {
        if ((children[i] = must(fork())) == 0) _exit(child());
        nap(5);
    }
    for (int i = 0; i < THREADS; i++) {
        long before = rounds[i];
        while (rounds[i] < before + 2) nap(5);
    }
    printf("ends come while all children live\n");
    for (int i = 0; i < FORKS; i++) must(kill(children[i], SIGUSR1));
    int works = 0, status;
    for (int i = 0; i < FORKS; i++) {
        must(wait(&status));
        works += WIFEXITED(status) && WEXITSTATUS(status) == 1;
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    printf("children that could use what they had: %d of %d\n", works, FORKS);
    return 0;
}
