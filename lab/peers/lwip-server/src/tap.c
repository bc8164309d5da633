/* A TAP device as an interface of lwIP: a frame for each read and write, without offloads, as lwIP's own port has it. */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "lwip/etharp.h"
#include "lwip/pbuf.h"
#include "netif/ethernet.h"
#include "server.h"

/* Frames that are taken before timers have their turn. */
#define TURN 64
/* Pieces of one frame: a segment is a header and what tcp_write() was given for it. */
#define PIECES 16
#define MTU 1500
#define FRAME (MTU + SIZEOF_ETH_HDR)

int tap_open(const char *device)
{
    struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI };
    int fd;

    if (strlen(device) >= sizeof request.ifr_name) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(request.ifr_name, device);
    fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && ioctl(fd, TUNSETIFF, &request) < 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* Frames that the device does not take are lost, as on a wire. */
static err_t tap_send(struct netif *netif, struct pbuf *frame)
{
    int fd = *(const int *)netif->state;
    struct iovec pieces[PIECES];
    char whole[FRAME];
    int count = 0;
    struct pbuf *piece;

    if (frame->tot_len > FRAME)
        return ERR_BUF;
    for (piece = frame; piece != NULL && count < PIECES; piece = piece->next)
        pieces[count++] = (struct iovec){ .iov_base = piece->payload, .iov_len = piece->len };
    if (piece != NULL) {
        pieces[0] = (struct iovec){ .iov_base = whole, .iov_len = frame->tot_len };
        pbuf_copy_partial(frame, whole, frame->tot_len, 0);
        count = 1;
    }
    return writev(fd, pieces, count) < 0 ? ERR_IF : ERR_OK;
}

err_t tap_init(struct netif *netif)
{
    /* A local address, which nobody else in the namespace has. */
    static const uint8_t address[ETH_HWADDR_LEN] = { 2, 0, 0, 0, 0, 2 };

    memcpy(netif->hwaddr, address, sizeof address);
    netif->hwaddr_len = sizeof address;
    netif->mtu = MTU;
    netif->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET | NETIF_FLAG_LINK_UP;
    netif->output = etharp_output;
    netif->linkoutput = tap_send;
    return ERR_OK;
}

int tap_receive(struct netif *netif)
{
    int fd = *(const int *)netif->state;
    int count;

    for (count = 0; count < TURN; count++) {
        struct pbuf *frame = pbuf_alloc(PBUF_RAW, FRAME, PBUF_POOL);
        ssize_t len;

        /* The device keeps the frame until there is room for it. */
        if (frame == NULL)
            return count;
        /* PBUF_POOL_BUFSIZE holds a frame of this MTU in one piece. */
        LWIP_ASSERT("a frame in one piece", frame->next == NULL);
        len = read(fd, frame->payload, frame->len);
        if (len <= 0) {
            pbuf_free(frame);
            if (len < 0 && errno != EAGAIN && errno != EINTR)
                return -1;
            return count;
        }
        pbuf_realloc(frame, (u16_t)len);
        if (netif->input(frame, netif) != ERR_OK)
            pbuf_free(frame);
    }
    return count;
}
