/* The parts of the server. */
#ifndef SERVER_H
#define SERVER_H

#include <stdint.h>

#include "lwip/err.h"
#include "lwip/netif.h"

/* What a port does with its bytes. */
enum role { ECHO, SINK, SOURCE };

/* Listens on a port of all addresses. */
err_t streams_listen(uint16_t port, enum role role);

/* Opens a TAP device that is up. Its descriptor, which does not block, or -1 with the reason in errno. */
int tap_open(const char *device);

/* For netif_add: an Ethernet interface whose state points to the descriptor. */
err_t tap_init(struct netif *netif);

/* Gives lwIP what has come, up to a limit. How many frames there were, or -1 with the reason in errno. */
int tap_receive(struct netif *netif);

#endif
