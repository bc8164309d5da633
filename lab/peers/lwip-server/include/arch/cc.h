/* What lwIP wants to know of compiler and system: everything else it finds out by itself. */
#ifndef ARCH_CC_H
#define ARCH_CC_H

#include <arpa/inet.h>
#include <stdlib.h>

/* The C library's are instructions; lwIP's own ones are functions. */
#define LWIP_DONT_PROVIDE_BYTEORDER_FUNCTIONS
#define lwip_htons(x) htons(x)
#define lwip_htonl(x) htonl(x)

#endif
