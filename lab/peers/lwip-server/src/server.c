/* The server's loop, and its datagrams. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "lwip/init.h"
#include "lwip/ip4_addr.h"
#include "lwip/sys.h"
#include "lwip/timeouts.h"
#include "lwip/udp.h"
#include "netif/ethernet.h"
#include "server.h"

/* For lwIP: milliseconds of a clock that never goes back. */
u32_t sys_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u32_t)(now.tv_sec * 1000 + now.tv_nsec / 1000000);
}

/* What cannot be sent is lost, as datagrams are. */
static void give_back(void *argument, struct udp_pcb *pcb, struct pbuf *datagram, const ip_addr_t *from, u16_t port)
{
    LWIP_UNUSED_ARG(argument);
    udp_sendto(pcb, datagram, from, port);
    pbuf_free(datagram);
}

static void count(void *argument, struct udp_pcb *pcb, struct pbuf *datagram, const ip_addr_t *from, u16_t port)
{
    static uint64_t all;

    LWIP_UNUSED_ARG(argument);
    if (datagram->tot_len == 1) {
        struct pbuf *answer = pbuf_alloc(PBUF_TRANSPORT, sizeof all, PBUF_RAM);
        if (answer != NULL) {
            uint8_t bytes[sizeof all];
            for (size_t n = 0; n < sizeof bytes; n++)
                bytes[n] = (uint8_t)(all >> (56 - 8 * n));
            pbuf_take(answer, bytes, sizeof bytes);
            udp_sendto(pcb, answer, from, port);
            pbuf_free(answer);
        }
    } else {
        all++;
    }
    pbuf_free(datagram);
}

static err_t datagrams_listen(uint16_t port, udp_recv_fn handle)
{
    struct udp_pcb *pcb = udp_new();
    err_t error;

    if (pcb == NULL)
        return ERR_MEM;
    error = udp_bind(pcb, IP_ANY_TYPE, port);
    udp_recv(pcb, handle, NULL);
    return error;
}

/* Who reaches the first port reaches all: nothing is read before all of them are there. */
static err_t listen_all(uint16_t port)
{
    err_t error = datagrams_listen(port, give_back);

    if (error == ERR_OK)
        error = datagrams_listen(port + 1, count);
    if (error == ERR_OK)
        error = streams_listen(port, ECHO);
    if (error == ERR_OK)
        error = streams_listen(port + 1, SINK);
    if (error == ERR_OK)
        error = streams_listen(port + 2, SOURCE);
    return error;
}

static int run(struct netif *netif)
{
    struct pollfd ready = { .fd = *(const int *)netif->state, .events = POLLIN };

    for (;;) {
        int count = tap_receive(netif);

        sys_check_timeouts();
        if (count == 0) {
            u32_t wait = sys_timeouts_sleeptime();
            count = poll(&ready, 1, wait == SYS_TIMEOUTS_SLEEPTIME_INFINITE ? -1 : (int)wait);
            if (count < 0 && errno == EINTR)
                continue;
        }
        if (count < 0) {
            perror("lwip-server: the device");
            return 1;
        }
    }
}

int serve(const char *device, uint32_t address, uint32_t mask, uint16_t port)
{
    static struct netif netif;
    ip4_addr_t here = { .addr = address }, net = { .addr = mask }, none = { .addr = 0 };
    int fd = tap_open(device);
    err_t error;

    if (fd < 0) {
        fprintf(stderr, "lwip-server: %s: %s\n", device, strerror(errno));
        return 1;
    }
    lwip_init();
    if (netif_add(&netif, &here, &net, &none, &fd, tap_init, ethernet_input) == NULL) {
        fprintf(stderr, "lwip-server: %s: lwIP does not take the interface\n", device);
        return 1;
    }
    netif_set_default(&netif);
    netif_set_up(&netif);
    error = listen_all(port);
    if (error != ERR_OK) {
        fprintf(stderr, "lwip-server: port %u: lwIP's error %d\n", port, error);
        return 1;
    }
    return run(&netif);
}
