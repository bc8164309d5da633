/* Opens and closes stacks. Each gives its descriptors and its address space back. */
#define _GNU_SOURCE
#include "check.h"
#include <sys/resource.h>
#include <towpath.h>
#include <unistd.h>

/* Size of the address space in pages. */
static unsigned long pages(void)
{
    unsigned long size = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%lu", &size) == 1);
    fclose(file);
    return size;
}

static int lowest_free(void)
{
    int fd = dup(0);
    close(fd);
    return fd;
}

static void open_and_close(void)
{
    struct towpath_options options = {.size = sizeof options, .link = "loopback"};
    int stack = towpath_stack_open(&options);
    CHECK(stack > 0);
    int fd = towpath_socket(stack, AF_INET, SOCK_DGRAM, 0);
    int set = towpath_epoll_create(stack);
    CHECK(fd > 0 && set > 0);
    WORKS(towpath_epoll_wake(set));
    WORKS(towpath_stack_close(stack));
}

int main(void)
{
    open_and_close();
    int free_before = lowest_free();
    unsigned long before = pages();
    for (int n = 0; n < 20; n++)
        open_and_close();
    CHECK(lowest_free() == free_before);
    /* A stack has 130 GiB. libc keeps some memory of threads. */
    CHECK(pages() < before + (1UL << 30) / 4096);
    return 0;
}
