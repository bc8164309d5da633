/* Checks of the test programs. A failed check prints its line and ends the program. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void check_at(int line, int holds, const char *text)
{
    if (holds)
        return;
    fprintf(stderr, "line %d: %s (errno %d, %s)\n", line, text, errno, strerror(errno));
    _Exit(1);
}

#define CHECK(condition) check_at(__LINE__, (condition), #condition)
#define FAILS(call, error) (errno = 0, check_at(__LINE__, (call) == -1 && errno == (error), #call ": expected " #error))
#define WORKS(call) check_at(__LINE__, (call) == 0, #call)
