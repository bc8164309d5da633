/* lwIP as a server on one thread has it best: the raw API without an operating system, pools that are large enough for
 * ten thousand connections, and windows of a quarter of a MiB. What is not here has lwIP's default (lwip/opt.h). */
#ifndef LWIPOPTS_H
#define LWIPOPTS_H

#define NO_SYS 1
#define SYS_LIGHTWEIGHT_PROT 0
#define LWIP_NETCONN 0
#define LWIP_SOCKET 0

/* Protocols that the measurements use. */
#define LWIP_IPV4 1
#define LWIP_IPV6 0
#define LWIP_ARP 1
#define LWIP_ICMP 1
#define LWIP_UDP 1
#define LWIP_TCP 1
#define LWIP_RAW 0
#define LWIP_DHCP 0
#define LWIP_DNS 0
#define LWIP_IGMP 0
#define LWIP_SINGLE_NETIF 1
#define LWIP_NETIF_LOOPBACK 0
#define LWIP_STATS 0
#define LWIP_NOASSERT 1

/* Fixed sizes come from pools, the rest from the C library: lwIP's own heap looks for the first hole that fits. */
#define MEM_ALIGNMENT 8
#define MEM_LIBC_MALLOC 1
#define MEMP_MEM_MALLOC 0
#define MEMP_NUM_TCP_PCB 16384
#define MEMP_NUM_TCP_SEG 65535
#define MEMP_NUM_PBUF 65535
#define PBUF_POOL_SIZE 8192

/* MTU 1500. A larger window moves no more over a device that has no delay. lwIP walks its queues from the front: a larger
 * one costs more for each write. */
#define TCP_MSS 1460
#define LWIP_WND_SCALE 1
#define TCP_RCV_SCALE 3
#define TCP_WND (256 * 1024)
#define TCP_SND_BUF (256 * 1024)
#define TCP_SNDLOWAT (4 * TCP_MSS)
#define LWIP_TCP_SACK_OUT 1

/* The fastest of lwIP's own sums. */
#define LWIP_CHKSUM_ALGORITHM 3

#endif
