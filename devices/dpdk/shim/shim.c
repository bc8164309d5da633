/* Wraps inline functions of DPDK, and functions that take large structures. */
#define _GNU_SOURCE
#include "shim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <unistd.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_net.h>

/* `src/sys.rs` computes the address of an mbuf from that of its frame, and vice versa. */
_Static_assert(sizeof(struct rte_mbuf) == 128, "size of struct rte_mbuf");
_Static_assert(RTE_PKTMBUF_HEADROOM == 128, "headroom of an mbuf");
_Static_assert(TWP_PRIVATE % RTE_MBUF_PRIV_ALIGN == 0, "alignment of private bytes");

/* The last log output of EAL and drivers, for error messages. */
static struct {
	pthread_mutex_t lock;
	char text[16384];
	size_t len;
	int to_stderr;
} journal = { .lock = PTHREAD_MUTEX_INITIALIZER };

static ssize_t journal_write(void *cookie, const char *bytes, size_t len)
{
	(void)cookie;
	pthread_mutex_lock(&journal.lock);
	size_t kept = len < sizeof journal.text ? len : sizeof journal.text;
	size_t room = sizeof journal.text - kept;
	if (journal.len > room) {
		memmove(journal.text, journal.text + (journal.len - room), room);
		journal.len = room;
	}
	memcpy(journal.text + journal.len, bytes + (len - kept), kept);
	journal.len += kept;
	int to_stderr = journal.to_stderr;
	pthread_mutex_unlock(&journal.lock);
	if (to_stderr && write(2, bytes, len) < 0)
		return (ssize_t)len; /* Ignore an error: standard error may be closed. */
	return (ssize_t)len;
}

uint32_t twp_log(char *to, uint32_t room)
{
	pthread_mutex_lock(&journal.lock);
	size_t n = journal.len < room ? journal.len : room;
	memcpy(to, journal.text + (journal.len - n), n);
	pthread_mutex_unlock(&journal.lock);
	return (uint32_t)n;
}

/* Gives EAL, which creates a folder for sockets and files, a temporary folder, and removes it at once. */
static int init_apart(int argc, char **argv)
{
	char folder[] = "/tmp/towpath-dpdk-XXXXXX";
	if (mkdtemp(folder) == NULL)
		return rte_eal_init(argc, argv);
	char *before = getenv("RUNTIME_DIRECTORY");
	char *kept = before ? strdup(before) : NULL;
	setenv("RUNTIME_DIRECTORY", folder, 1);
	int done = rte_eal_init(argc, argv);
	int error = rte_errno;
	if (kept)
		setenv("RUNTIME_DIRECTORY", kept, 1);
	else
		unsetenv("RUNTIME_DIRECTORY");
	free(kept);
	char inner[sizeof folder + 16];
	snprintf(inner, sizeof inner, "%s/dpdk/rte", folder);
	rmdir(inner);
	snprintf(inner, sizeof inner, "%s/dpdk", folder);
	rmdir(inner);
	rmdir(folder);
	rte_errno = error;
	return done;
}

#define DESCRIPTORS_KNOWN 4096
/* Descriptors without FD_CLOEXEC before EAL was started. */
static uint8_t inheritable[DESCRIPTORS_KNOWN / 8];

static void each_inheritable(void (*each)(int fd))
{
	DIR *all = opendir("/proc/self/fd");
	if (all == NULL)
		return;
	for (struct dirent *entry; (entry = readdir(all)) != NULL;) {
		int fd = atoi(entry->d_name);
		int flags = fcntl(fd, F_GETFD);
		if (fd > 2 && fd != dirfd(all) && flags >= 0 && !(flags & FD_CLOEXEC))
			each(fd);
	}
	closedir(all);
}

static void note(int fd)
{
	if (fd < DESCRIPTORS_KNOWN)
		inheritable[fd / 8] |= (uint8_t)(1 << fd % 8);
}

static void close_on_exec(int fd)
{
	if (fd >= DESCRIPTORS_KNOWN || !(inheritable[fd / 8] & 1 << fd % 8))
		fcntl(fd, F_SETFD, FD_CLOEXEC);
}

void twp_keep_from_programs(void)
{
	each_inheritable(close_on_exec);
}

int twp_init(int argc, char **argv, int logs_to_stderr, int keeps_files)
{
	journal.to_stderr = logs_to_stderr;
	each_inheritable(note);
	cookie_io_functions_t functions = { .write = journal_write };
	FILE *log = fopencookie(NULL, "w", functions);
	if (log == NULL)
		return -ENOMEM;
	setvbuf(log, NULL, _IOLBF, 512);
	rte_openlog_stream(log);
	/* EAL prints its usage to standard output, which belongs to PROGRAM. No other code of towpath uses stdio. */
	FILE *nowhere = fopen("/dev/null", "we");
	if (nowhere)
		stdout = nowhere;
	cpu_set_t cpus;
	int known = pthread_getaffinity_np(pthread_self(), sizeof cpus, &cpus) == 0;
	int done = keeps_files ? rte_eal_init(argc, argv) : init_apart(argc, argv);
	int error = rte_errno;
	/* Undo the affinity that EAL sets for the thread that initializes it. */
	if (known)
		pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus);
	fflush(log);
	if (done < 0)
		return error > 0 ? -error : -EINVAL;
	return 0;
}

uint32_t twp_ports(uint16_t *ids, uint32_t max)
{
	uint32_t n = 0;
	uint16_t port;
	RTE_ETH_FOREACH_DEV(port) {
		if (n < max)
			ids[n] = port;
		n++;
	}
	return n;
}

static uint32_t interface_mtu(const char *name)
{
	struct ifreq request = { 0 };
	snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return 0;
	int failed = ioctl(fd, SIOCGIFMTU, &request);
	close(fd);
	return failed ? 0 : (uint32_t)request.ifr_mtu;
}

#define CHECKSUMS (RTE_ETH_TX_OFFLOAD_TCP_CKSUM | RTE_ETH_TX_OFFLOAD_UDP_CKSUM)
#define SEGMENTS (RTE_ETH_TX_OFFLOAD_TCP_TSO | RTE_ETH_TX_OFFLOAD_IPV4_CKSUM | RTE_ETH_TX_OFFLOAD_MULTI_SEGS)
/* Number of segments for 64 KiB in buffers of minimum size, and one for the remainder. */
#define PIECES_MAX 34

int twp_info(uint16_t port, struct twp_info *info)
{
	struct rte_eth_dev_info dev;
	memset(info, 0, sizeof *info);
	int error = rte_eth_dev_info_get(port, &dev);
	if (error)
		return error;
	snprintf(info->driver, sizeof info->driver, "%s", dev.driver_name ? dev.driver_name : "");
	rte_eth_dev_get_name_by_port(port, info->name);
	char name[IF_NAMESIZE];
	if (dev.if_index && if_indextoname(dev.if_index, name)) {
		snprintf(info->interface, sizeof info->interface, "%s", name);
		info->interface_mtu = interface_mtu(name);
	}
	uint16_t mtu = 0;
	rte_eth_dev_get_mtu(port, &mtu);
	info->mtu = mtu;
	info->mtu_max = dev.max_mtu;
	info->queues_max = RTE_MIN(dev.max_rx_queues, dev.max_tx_queues);
	struct rte_ether_addr mac;
	if (rte_eth_macaddr_get(port, &mac) == 0)
		memcpy(info->mac, mac.addr_bytes, sizeof info->mac);
	uint64_t can = dev.tx_offload_capa;
	uint16_t pieces = dev.tx_desc_lim.nb_seg_max;
	info->can_checksum = (can & CHECKSUMS) == CHECKSUMS;
	info->can_segment = info->can_checksum && (can & SEGMENTS) == SEGMENTS &&
			    (pieces == 0 || pieces >= PIECES_MAX);
	return 0;
}

/* Number of descriptors per queue, if the driver supports that many. */
#define DESCRIPTORS 1024
/* Number of descriptors per queue with buffers for long frames. */
#define DESCRIPTORS_OF_LONG 256
/* mbufs per descriptor: those in both rings, and those that the stack holds. */
#define MBUFS_PER_DESCRIPTOR 4
#define CACHE 256

static int set_up_queues(uint16_t port, uint16_t queues, const struct rte_eth_dev_info *dev, uint32_t room,
			 const char **step, void **pools)
{
	unsigned wanted = room > 4096 ? DESCRIPTORS_OF_LONG : DESCRIPTORS;
	uint16_t rx = (uint16_t)wanted, tx = (uint16_t)wanted;
	/* net_tap passes the buffers of all descriptors to each read of a single frame, so use one descriptor. */
	if (strcmp(dev->driver_name, "net_tap") == 0)
		rx = 1;
	*step = "agree on the length of rings";
	int error = rte_eth_dev_adjust_nb_rx_tx_desc(port, &rx, &tx);
	if (error)
		return error;
	static unsigned made;
	for (uint16_t queue = 0; queue < queues; queue++) {
		char name[RTE_MEMPOOL_NAMESIZE];
		snprintf(name, sizeof name, "towpath%u", made++);
		*step = "make a pool of mbufs";
		struct rte_mempool *pool = rte_pktmbuf_pool_create(
			name, MBUFS_PER_DESCRIPTOR * RTE_MAX(wanted, rx), CACHE, TWP_PRIVATE, (uint16_t)(RTE_PKTMBUF_HEADROOM + room),
			rte_eth_dev_socket_id(port));
		if (pool == NULL)
			return -rte_errno;
		pools[queue] = pool;
		*step = "set up a queue to receive";
		error = rte_eth_rx_queue_setup(port, queue, rx, rte_eth_dev_socket_id(port), NULL, pool);
		if (error) {
			for (uint16_t i = 0; i <= queue; i++)
				rte_mempool_free(pools[i]);
			return error;
		}
	}
	for (uint16_t queue = 0; queue < queues; queue++) {
		*step = "set up a queue to send";
		struct rte_eth_txconf conf = dev->default_txconf;
		conf.offloads = 0;
		error = rte_eth_tx_queue_setup(port, queue, tx, rte_eth_dev_socket_id(port), &conf);
		if (error)
			return error;
	}
	return 0;
}

int twp_start(uint16_t port, uint16_t queues, uint32_t mtu, int sets_mtu, int wants_groups,
	      const char **step, void **pools, uint32_t *frame_len)
{
	struct rte_eth_dev_info dev;
	*step = "ask about the port";
	int error = rte_eth_dev_info_get(port, &dev);
	if (error)
		return error;
	struct rte_eth_conf conf = { 0 };
	struct twp_info info;
	*step = "ask about the port";
	error = twp_info(port, &info);
	if (error)
		return error;
	uint64_t tx = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
	if (info.can_checksum)
		tx |= CHECKSUMS | RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
	if (info.can_segment)
		tx |= SEGMENTS;
	conf.txmode.offloads = tx & dev.tx_offload_capa;
	uint64_t rx = RTE_ETH_RX_OFFLOAD_CHECKSUM | RTE_ETH_RX_OFFLOAD_SCATTER | RTE_ETH_RX_OFFLOAD_VLAN_STRIP |
		      RTE_ETH_RX_OFFLOAD_RSS_HASH;
	conf.rxmode.offloads = rx & dev.rx_offload_capa;
	if (sets_mtu)
		conf.rxmode.mtu = mtu;
	uint64_t hashes = (RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP) & dev.flow_type_rss_offloads;
	if (queues > 1 && hashes) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf = hashes;
	} else {
		conf.rxmode.offloads &= ~RTE_ETH_RX_OFFLOAD_RSS_HASH;
	}
	/* Enable interrupts if a queue's file descriptor is the device's own; see twp_wake_fd. */
	conf.intr_conf.rxq = strcmp(info.driver, "net_tap") == 0;
	*step = "configure the port";
	error = rte_eth_dev_configure(port, queues, queues, &conf);
	if (error)
		return error;
	/* Drivers with their own buffers need mbufs of that size, which only their log shows. Try several sizes. */
	static const uint32_t rooms[] = { 2048, 4096, 9728, 16384, 65408 };
	error = -EINVAL;
	for (unsigned i = 0; i < RTE_DIM(rooms) && error; i++) {
		if (rooms[i] < mtu + 22)
			continue;
		error = set_up_queues(port, queues, &dev, rooms[i], step, pools);
		*frame_len = TWP_PRIVATE + RTE_PKTMBUF_HEADROOM + rooms[i];
	}
	if (error)
		return error;
	*step = "start the port";
	error = rte_eth_dev_start(port);
	if (error)
		return error;
	/* IPv6 neighbour discovery uses multicast. Drivers without a multicast filter receive it in any case. */
	if (wants_groups)
		rte_eth_allmulticast_enable(port);
	return 0;
}

void twp_close(uint16_t port)
{
	rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
}

/* Enables promiscuous mode until the descriptor is closed, even if the process is killed. */
int twp_hold_promiscuous(const char *interface)
{
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	struct packet_mreq request = { .mr_ifindex = (int)if_nametoindex(interface), .mr_type = PACKET_MR_PROMISC };
	if (setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &request, sizeof request)) {
		int error = errno;
		close(fd);
		return -error;
	}
	return fd;
}

int twp_is_there(const char *interface)
{
	return if_nametoindex(interface) != 0;
}

int twp_wake_fd(uint16_t port, uint16_t queue)
{
	struct twp_info info;
	if (twp_info(port, &info) || strcmp(info.driver, "net_tap"))
		return -1;
	return rte_eth_dev_rx_intr_ctl_q_get_fd(port, queue);
}

void twp_enter_thread(void)
{
	/* Reduce the timer slack, because the kernel's default adds 50 us to each short sleep between polls. */
	prctl(PR_SET_TIMERSLACK, 1000UL);
	/* Register the thread, because an unregistered one has no mbuf cache, and is slower. */
	if (rte_lcore_id() == LCORE_ID_ANY)
		rte_thread_register();
}

uint16_t twp_rx(uint16_t port, uint16_t queue, struct twp_in *in, uint16_t max)
{
	struct rte_mbuf *mbufs[TWP_BURST];
	uint16_t n = rte_eth_rx_burst(port, queue, mbufs, RTE_MIN(max, TWP_BURST));
	for (uint16_t i = 0; i < n; i++) {
		struct rte_mbuf *m = mbufs[i];
		uint64_t flags = m->ol_flags;
		/* Recognize a buffer of our pools by its address, without reading the second cache line. */
		int is_plain = m->buf_addr == (char *)(m + 1) + TWP_PRIVATE && m->data_off == RTE_PKTMBUF_HEADROOM &&
			       m->nb_segs == 1 && rte_mbuf_refcnt_read(m) == 1;
		in[i].mbuf = m;
		in[i].len = m->pkt_len;
		in[i].hash = 0;
		in[i].state = is_plain ? TWP_PLAIN : 0;
		if (likely(flags == 0))
			continue;
		if (flags & RTE_MBUF_F_RX_RSS_HASH)
			in[i].hash = m->hash.rss;
		if ((flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) == RTE_MBUF_F_RX_L4_CKSUM_GOOD)
			in[i].state |= TWP_VERIFIED;
		if (flags & RTE_MBUF_F_RX_VLAN_STRIPPED) {
			in[i].state |= TWP_TAGGED;
			in[i].vlan = m->vlan_tci;
		}
	}
	return n;
}

/* Copies the first `len` bytes. The caller must have checked the length. */
void twp_read(const void *mbuf, uint32_t len, uint8_t *to)
{
	const void *at = rte_pktmbuf_read(mbuf, 0, len, to);
	if (at != NULL && at != to)
		memcpy(to, at, len);
}

int twp_alloc(void *pool, void **mbufs, uint32_t n)
{
	return rte_pktmbuf_alloc_bulk(pool, (struct rte_mbuf **)mbufs, n);
}

void twp_free(void **mbufs, uint32_t n)
{
	rte_pktmbuf_free_bulk((struct rte_mbuf **)mbufs, n);
}

static void set_work(struct rte_mbuf *m, const struct twp_out *out)
{
	uint64_t flags = 0;
	if (out->work & (TWP_TCP | TWP_UDP)) {
		m->l2_len = RTE_ETHER_HDR_LEN;
		m->l3_len = out->l3_len;
		m->l4_len = out->l4_len;
		flags |= out->work & TWP_TCP ? RTE_MBUF_F_TX_TCP_CKSUM : RTE_MBUF_F_TX_UDP_CKSUM;
		flags |= out->work & TWP_IPV6 ? RTE_MBUF_F_TX_IPV6 : RTE_MBUF_F_TX_IPV4;
		if (out->work & TWP_SEGMENT) {
			m->tso_segsz = out->segment;
			flags |= RTE_MBUF_F_TX_TCP_SEG;
			if (!(out->work & TWP_IPV6))
				flags |= RTE_MBUF_F_TX_IP_CKSUM;
		}
	}
	m->ol_flags = flags;
	/* Segmentation offload expects the checksum of the pseudo-header without its length (rte_mbuf_core.h). */
	if (out->work & TWP_SEGMENT)
		rte_net_intel_cksum_flags_prepare(m, flags);
}

static void chain(struct rte_mbuf *first, const struct twp_out *out, uint16_t pieces)
{
	struct rte_mbuf *last = first;
	for (uint16_t i = 1; i < pieces; i++) {
		struct rte_mbuf *m = out[i].mbuf;
		m->data_off = out[i].data_off;
		m->data_len = (uint16_t)out[i].len;
		first->pkt_len += out[i].len;
		last->next = m;
		last = m;
	}
	last->next = NULL;
	first->nb_segs = pieces;
}

uint16_t twp_chain(const struct twp_out *out, uint16_t n, void **packets)
{
	uint16_t count = 0;
	for (uint16_t i = 0; i < n;) {
		const struct twp_out *head = &out[i++];
		struct rte_mbuf *m = head->mbuf;
		packets[count++] = m;
		m->data_off = head->data_off;
		m->data_len = (uint16_t)head->len;
		m->pkt_len = head->len;
		m->ol_flags = 0;
		/* New and plain mbufs have one segment, and `next` is null. */
		if (unlikely(head->goes_on)) {
			uint16_t pieces = 2;
			while (head[pieces - 1].goes_on)
				pieces++;
			i += pieces - 1;
			chain(m, head, pieces);
		}
		if (unlikely(head->work))
			set_work(m, head);
	}
	return count;
}

uint16_t twp_tx(uint16_t port, uint16_t queue, void **packets, uint16_t n)
{
	return rte_eth_tx_burst(port, queue, (struct rte_mbuf **)packets, n);
}

uint32_t twp_counters(uint16_t port, char (*names)[64], uint64_t *values, uint32_t max)
{
	static struct rte_eth_xstat_name named[512];
	static struct rte_eth_xstat counted[512];
	_Static_assert(sizeof named[0].name == 64, "length of a name");
	int n = rte_eth_xstats_get_names(port, named, RTE_DIM(named));
	int got = rte_eth_xstats_get(port, counted, RTE_DIM(counted));
	if (n <= 0 || got <= 0 || n > (int)RTE_DIM(named))
		return 0;
	uint32_t count = RTE_MIN((uint32_t)RTE_MIN(n, got), max);
	for (uint32_t i = 0; i < count; i++) {
		memcpy(names[i], named[counted[i].id].name, 64);
		values[i] = counted[i].value;
	}
	return count;
}
