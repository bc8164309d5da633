/* Functions of DPDK for Rust, without structures of DPDK in their arguments. Keep in sync with `src/sys.rs`. */
#ifndef TOWPATH_DPDK_SHIM_H
#define TOWPATH_DPDK_SHIM_H

#include <stdint.h>

/* Maximum number of packets per call. */
#define TWP_BURST 32
/* Bytes before the headroom that no driver uses. With the headroom, they are the headroom of the packet pool. */
#define TWP_PRIVATE 64

struct twp_info {
	char driver[32];
	char name[64];
	char interface[32]; /* Kernel interface that the port shares; empty: none. */
	uint32_t interface_mtu;
	uint32_t mtu;
	uint32_t mtu_max;
	uint16_t queues_max;
	uint8_t mac[6];
	uint8_t can_checksum;
	uint8_t can_segment;
};

/* A received packet. */
struct twp_in {
	void *mbuf;
	uint32_t len;
	uint32_t hash;
	uint16_t vlan;
	uint16_t state;
};

/* Bits of `state`. Plain: a single segment, at the default offset of a buffer from our pools, with one reference. */
#define TWP_PLAIN 1
#define TWP_VERIFIED 2
#define TWP_TAGGED 4

/* A segment of a packet to be sent. The first one describes the offload work. */
struct twp_out {
	void *mbuf;
	uint32_t len;
	uint16_t data_off;
	uint16_t l3_len;
	uint16_t l4_len;
	uint16_t segment;
	uint8_t work;
	uint8_t goes_on; /* The next segment belongs to the same packet. */
};

/* Bits of `work`. */
#define TWP_TCP 1
#define TWP_UDP 2
#define TWP_IPV6 4
#define TWP_SEGMENT 8

int twp_init(int argc, char **argv, int logs_to_stderr, int keeps_files);
void twp_keep_from_programs(void);
uint32_t twp_log(char *to, uint32_t room);
uint32_t twp_ports(uint16_t *ids, uint32_t max);
int twp_info(uint16_t port, struct twp_info *info);
int twp_start(uint16_t port, uint16_t queues, uint32_t mtu, int sets_mtu, int wants_groups,
	      const char **step, void **pools, uint32_t *frame_len);
void twp_close(uint16_t port);
int twp_is_there(const char *interface);
int twp_hold_promiscuous(const char *interface);
int twp_wake_fd(uint16_t port, uint16_t queue);
void twp_enter_thread(void);
uint16_t twp_rx(uint16_t port, uint16_t queue, struct twp_in *in, uint16_t max);
void twp_read(const void *mbuf, uint32_t len, uint8_t *to);
int twp_alloc(void *pool, void **mbufs, uint32_t n);
void twp_free(void **mbufs, uint32_t n);
uint16_t twp_chain(const struct twp_out *out, uint16_t n, void **packets);
uint16_t twp_tx(uint16_t port, uint16_t queue, void **packets, uint16_t n);
uint32_t twp_counters(uint16_t port, char (*names)[64], uint64_t *values, uint32_t max);

#endif
