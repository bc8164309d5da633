//! Table of the socket options. Options that are not in the table fail with ENOPROTOOPT. The table
//! also contains some options that fail, so that the documentation lists them.

use towpath_shm::layout::{option_bit as bit, setting};

/// Option: size in bytes of the datagrams into which a send is split. The libc crate lacks this
/// constant for some targets.
pub const UDP_SEGMENT: i32 = 103;
/// Option: whether several datagrams received at once are returned as one. The libc crate lacks
/// this constant for some targets.
pub const UDP_GRO: i32 = 104;
/// Option: protocol above TCP, such as TLS. The libc crate lacks this constant for some targets.
pub const TCP_ULP: i32 = 31;
/// Option: keys of the Fast Open cookies of a listener. The libc crate lacks this constant for some
/// targets.
pub const TCP_FASTOPEN_KEY: i32 = 33;
/// Option: whether recvmsg returns the number of unread bytes. The libc crate lacks this constant
/// for some targets.
pub const TCP_INQ: i32 = 36;
/// Option: index of the interface to which a socket is bound. The libc crate lacks this constant
/// for some targets.
pub const SO_BINDTOIFINDEX: i32 = 62;
/// Option that prevents changes of a socket's filter. The libc crate lacks this constant for some
/// targets.
pub const SO_LOCK_FILTER: i32 = 44;
/// Option that attaches an eBPF program as filter. The libc crate lacks this constant for some
/// targets.
pub const SO_ATTACH_BPF: i32 = 50;
/// Option that attaches an eBPF program which selects among sockets with SO_REUSEPORT. The libc
/// crate lacks this constant for some targets.
pub const SO_ATTACH_REUSEPORT_EBPF: i32 = 52;
/// Option: range of ports from which bind and connect choose. The libc crate lacks this constant
/// for some targets.
pub const IP_LOCAL_PORT_RANGE: i32 = 51;
/// Option: whether the socket also receives datagrams to groups that only other sockets have
/// joined. The libc crate lacks this constant for some targets.
pub const IPV6_MULTICAST_ALL: i32 = 29;
/// Option: minimum hop limit of received packets. The libc crate lacks this constant for some
/// targets.
pub const IPV6_MINHOPCOUNT: i32 = 73;
/// Option that joins a multicast group. The libc crate lacks this constant of Linux.
pub const MCAST_JOIN_GROUP: i32 = 42;
/// Option that leaves a multicast group. The libc crate lacks this constant of Linux.
pub const MCAST_LEAVE_GROUP: i32 = 45;
/// Option that joins a multicast group for packets of one source. The libc crate lacks this
/// constant of Linux.
pub const MCAST_JOIN_SOURCE_GROUP: i32 = 46;
/// Option that leaves a multicast group for packets of one source. The libc crate lacks this
/// constant of Linux.
pub const MCAST_LEAVE_SOURCE_GROUP: i32 = 47;

/// Option of a listener that makes its connections keep the headers of the SYN. [`TCP_SAVED_SYN`]
/// returns them.
pub const TCP_SAVE_SYN: i32 = 27;
/// Option that returns the headers of a connection's SYN, if [`TCP_SAVE_SYN`] was enabled.
pub const TCP_SAVED_SYN: i32 = 28;

/// Storage of a socket option, and the sockets and packets that it affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// A Boolean option, stored in a bit of the socket's shared state. `setting` is the number with
    /// which the engine is notified of a change. 0: only this library uses the bit.
    Bit {
        /// The bit that stores the option, from [`towpath_shm::layout::option_bit`].
        bit: u32,
        /// Number with which the engine is notified of a change, from
        /// [`towpath_shm::layout::setting`].
        setting: u32,
    },
    /// A number within a range. The engine is notified when it changes.
    Told {
        /// Number with which the engine is notified of a change, from
        /// [`towpath_shm::layout::setting`].
        setting: u32,
        /// Minimum and maximum value of the option.
        range: (i32, i32),
        /// Value of the option if the program has not set it.
        default: i32,
    },
    /// A number within a range. The option affects only this library, or has no effect.
    Kept {
        /// Minimum and maximum value of the option.
        range: (i32, i32),
        /// Value of the option if the program has not set it.
        default: i32,
    },
    /// An option that cannot be changed. A program can only set the value that describes what the
    /// stack does.
    Only {
        /// The only value that a program can set.
        value: i32,
        /// Errno with which setting another value fails.
        otherwise: i32,
    },
    /// The engine (the network stack) handles both setsockopt and getsockopt of this option.
    Engine,
    /// The engine (the network stack) handles setsockopt. getsockopt returns the value that this
    /// process last set.
    Asked {
        /// Value on an AF_INET socket until a program sets the option.
        default: i32,
        /// Value on an AF_INET6 socket until a program sets the option.
        default_v6: i32,
    },
    /// The engine handles setsockopt. getsockopt fails.
    EngineSet,
    /// The option is implemented by code in the module `value`.
    Special,
    /// Both setsockopt and getsockopt fail with this errno.
    Refused {
        /// Errno that Linux returns if the feature is missing or needs a privilege.
        errno: i32,
    },
}

/// Row of the table of socket options.
#[derive(Debug, Clone, Copy)]
pub struct OptionRow {
    /// Level of the option in setsockopt(2), such as SOL_SOCKET or IPPROTO_IP.
    pub level: i32,
    /// Number of the option in setsockopt(2), such as SO_KEEPALIVE.
    pub name: i32,
    /// Name of the option's C constant.
    pub text: &'static str,
    /// How setsockopt and getsockopt handle the option.
    pub effect: Effect,
    /// Note about the option in `docs/posix.md`, in Markdown.
    pub note: &'static str,
}

const fn opt(
    level: i32,
    name: i32,
    text: &'static str,
    effect: Effect,
    note: &'static str,
) -> OptionRow {
    OptionRow { level, name, text, effect, note }
}
const fn flag(bit: u32, setting: u32) -> Effect {
    Effect::Bit { bit, setting }
}
const fn told(setting: u32, least: i32, most: i32, default: i32) -> Effect {
    Effect::Told { setting, range: (least, most), default }
}
const fn kept(least: i32, most: i32, default: i32) -> Effect {
    Effect::Kept { range: (least, most), default }
}
const fn asked(default: i32) -> Effect {
    Effect::Asked { default, default_v6: default }
}
const fn only(value: i32) -> Effect {
    Effect::Only { value, otherwise: libc::ENOPROTOOPT }
}
const fn refused(errno: i32) -> Effect {
    Effect::Refused { errno }
}

const TCP_INFO_NOTE: &str = "read only; the structure of Linux 6.18. Of a listener tcpi_unacked \
    and tcpi_sacked are its queue and backlog. \
    tcpi_delivery_rate is measured while more than one transmission is in flight. Not measured and \
    0: tcpi_total_rto, and the byte counters of AccECN. tcpi_rcv_rtt is 0 below 64 KiB of received \
    data";

const CC_INFO_NOTE: &str = "read only; the structures of Linux for vegas, dctcp and bbr, 0 bytes \
    for others";

const PACING_NOTE: &str = "4 or 8 bytes by the length. Of TCP it holds for payload, from the \
    first byte on (Linux: after ten segments), in bursts of 1 ms or two segments; 0 and the \
    largest number are no bound. Of datagrams it is remembered only, as on Linux without the fq \
    qdisc";

const FILTER_NOTE: &str = "of UDP and \"ping\" sockets; of TCP: ENOPROTOOPT. Classic BPF as \
    Linux checks and runs it, with SKF_NET_OFF, SKF_LL_OFF and the SKF_AD_ words, but for \
    SKF_AD_NLATTR and SKF_AD_NLATTR_NEST (EINVAL). SKF_AD_CPU is the number of the shard; \
    SKF_AD_MARK, SKF_AD_QUEUE and the VLAN words are 0";

const PROCESSOR_NOTE: &str = "reads, once a packet has come, the processor that runs the \
    socket's shard when asked. What is set chooses within a group of SO_REUSEPORT by the \
    processor that runs the shard of the packet; of UDP sockets with one shard only";

const STREAM_TIMES: &str = "also of streams: the time of the newest bytes that had come when \
                            these were read, as bytes of a stream are kept without the times of \
                            their segments";

const SOCKET: i32 = libc::SOL_SOCKET;
const TCP: i32 = libc::IPPROTO_TCP;
const IP: i32 = libc::IPPROTO_IP;
const V6: i32 = libc::IPPROTO_IPV6;
const UDP: i32 = libc::IPPROTO_UDP;
use Effect::{Engine, EngineSet, Special};

/// The table of socket options, sorted by level.
pub const OPTIONS: &[OptionRow] = &[
    opt(
        SOCKET,
        libc::SO_DEBUG,
        "SO_DEBUG",
        Effect::Only { value: 0, otherwise: libc::EACCES },
        "needs a privilege on Linux",
    ),
    opt(SOCKET, libc::SO_REUSEADDR, "SO_REUSEADDR", flag(bit::REUSEADDR, setting::REUSEADDR), ""),
    opt(SOCKET, libc::SO_TYPE, "SO_TYPE", Special, "read only"),
    opt(SOCKET, libc::SO_ERROR, "SO_ERROR", Special, "read only"),
    opt(SOCKET, libc::SO_DONTROUTE, "SO_DONTROUTE", only(0), ""),
    opt(SOCKET, libc::SO_BROADCAST, "SO_BROADCAST", flag(bit::BROADCAST, setting::BROADCAST), ""),
    opt(
        SOCKET,
        libc::SO_SNDBUF,
        "SO_SNDBUF",
        Special,
        "doubled, as on Linux; of a connection on which it was not set, the size in use",
    ),
    opt(SOCKET, libc::SO_RCVBUF, "SO_RCVBUF", Special, "as SO_SNDBUF"),
    opt(SOCKET, libc::SO_KEEPALIVE, "SO_KEEPALIVE", flag(bit::KEEPALIVE, setting::KEEPALIVE), ""),
    opt(SOCKET, libc::SO_OOBINLINE, "SO_OOBINLINE", flag(bit::OOBINLINE, 0), ""),
    opt(
        SOCKET,
        libc::SO_NO_CHECK,
        "SO_NO_CHECK",
        flag(bit::NO_CHECK, setting::NO_CHECK),
        "of UDP over IPv4, as on Linux; not together with UDP_SEGMENT",
    ),
    opt(
        SOCKET,
        libc::SO_PRIORITY,
        "SO_PRIORITY",
        Special,
        "no queue looks at it; more than 6 needs a privilege on Linux",
    ),
    opt(SOCKET, libc::SO_LINGER, "SO_LINGER", Special, ""),
    opt(SOCKET, libc::SO_REUSEPORT, "SO_REUSEPORT", flag(bit::REUSEPORT, setting::REUSEPORT), ""),
    opt(
        SOCKET,
        libc::SO_PASSCRED,
        "SO_PASSCRED",
        refused(libc::EOPNOTSUPP),
        "as on Linux 6.16 and later",
    ),
    opt(
        SOCKET,
        libc::SO_PEERCRED,
        "SO_PEERCRED",
        Special,
        "read only; nobody, as Linux says of TCP",
    ),
    opt(
        SOCKET,
        libc::SO_RCVLOWAT,
        "SO_RCVLOWAT",
        Special,
        "honoured by recv, poll, select and epoll",
    ),
    opt(
        SOCKET,
        libc::SO_SNDLOWAT,
        "SO_SNDLOWAT",
        Effect::Only { value: 1, otherwise: libc::ENOPROTOOPT },
        "",
    ),
    opt(SOCKET, libc::SO_RCVTIMEO, "SO_RCVTIMEO", Special, ""),
    opt(SOCKET, libc::SO_SNDTIMEO, "SO_SNDTIMEO", Special, ""),
    opt(SOCKET, 66, "SO_RCVTIMEO_NEW", Special, ""),
    opt(SOCKET, 67, "SO_SNDTIMEO_NEW", Special, ""),
    opt(
        SOCKET,
        libc::SO_BINDTODEVICE,
        "SO_BINDTODEVICE",
        Special,
        "the stack's interfaces: lo, and the run's",
    ),
    opt(SOCKET, SO_BINDTOIFINDEX, "SO_BINDTOIFINDEX", Special, "as SO_BINDTODEVICE"),
    opt(SOCKET, libc::SO_DETACH_FILTER, "SO_DETACH_FILTER", Special, ""),
    opt(SOCKET, libc::SO_ATTACH_FILTER, "SO_ATTACH_FILTER", Special, FILTER_NOTE),
    opt(SOCKET, SO_LOCK_FILTER, "SO_LOCK_FILTER", Special, ""),
    opt(
        SOCKET,
        SO_ATTACH_BPF,
        "SO_ATTACH_BPF",
        Special,
        "always EBADF or EINVAL, as for no program: those of the kernel cannot be run here",
    ),
    opt(SOCKET, SO_ATTACH_REUSEPORT_EBPF, "SO_ATTACH_REUSEPORT_EBPF", Special, "as SO_ATTACH_BPF"),
    opt(SOCKET, libc::SO_TIMESTAMP, "SO_TIMESTAMP", Special, STREAM_TIMES),
    opt(SOCKET, libc::SO_TIMESTAMPNS, "SO_TIMESTAMPNS", Special, STREAM_TIMES),
    opt(
        SOCKET,
        libc::SO_TIMESTAMPING,
        "SO_TIMESTAMPING",
        Special,
        "in software: RX_SOFTWARE, on streams as SO_TIMESTAMP; TX_SCHED, TX_SOFTWARE and TX_ACK, \
         with OPT_ID and OPT_ID_TCP, in the error queue and always without the packet \
         (OPT_TSONLY). On streams each call is reported, also if its bytes share a segment. The \
         flags of hardware time stamps mean nothing, as for a device that has none; others: \
         ENOPROTOOPT",
    ),
    opt(SOCKET, libc::SO_ACCEPTCONN, "SO_ACCEPTCONN", Special, "read only"),
    opt(
        SOCKET,
        libc::SO_SNDBUFFORCE,
        "SO_SNDBUFFORCE",
        Special,
        "with CAP_NET_ADMIN, up to 16 MiB; else EPERM",
    ),
    opt(SOCKET, libc::SO_RCVBUFFORCE, "SO_RCVBUFFORCE", Special, "as SO_SNDBUFFORCE"),
    opt(SOCKET, libc::SO_MARK, "SO_MARK", Special, "reads 0; setting needs a privilege on Linux"),
    opt(SOCKET, libc::SO_PROTOCOL, "SO_PROTOCOL", Special, "read only"),
    opt(SOCKET, libc::SO_DOMAIN, "SO_DOMAIN", Special, "read only"),
    opt(
        SOCKET,
        libc::SO_RXQ_OVFL,
        "SO_RXQ_OVFL",
        flag(bit::RXQ_OVFL, 0),
        "counts what found the receive buffer full or a filter drops, not wrong checksums",
    ),
    opt(
        SOCKET,
        libc::SO_PEEK_OFF,
        "SO_PEEK_OFF",
        Special,
        "of TCP and UDP; an empty datagram is shown until it is read",
    ),
    opt(
        SOCKET,
        libc::SO_BUSY_POLL,
        "SO_BUSY_POLL",
        Effect::Only { value: 0, otherwise: libc::EPERM },
        "needs a privilege on Linux",
    ),
    opt(SOCKET, libc::SO_MAX_PACING_RATE, "SO_MAX_PACING_RATE", Special, PACING_NOTE),
    opt(SOCKET, libc::SO_INCOMING_CPU, "SO_INCOMING_CPU", Engine, PROCESSOR_NOTE),
    opt(SOCKET, 56, "SO_INCOMING_NAPI_ID", only(0), ""),
    opt(SOCKET, 57, "SO_COOKIE", Special, "read only"),
    opt(
        SOCKET,
        libc::SO_MEMINFO,
        "SO_MEMINFO",
        Special,
        "read only; bytes without overhead, no drops",
    ),
    opt(
        SOCKET,
        libc::SO_ZEROCOPY,
        "SO_ZEROCOPY",
        Special,
        "of TCP and UDP. MSG_ZEROCOPY copies, and tells so at once \
         (SO_EE_CODE_ZEROCOPY_COPIED), as on Linux over loopback",
    ),
    opt(TCP, libc::TCP_NODELAY, "TCP_NODELAY", flag(bit::NODELAY, setting::NODELAY), ""),
    opt(TCP, libc::TCP_MAXSEG, "TCP_MAXSEG", Special, ""),
    opt(TCP, libc::TCP_CORK, "TCP_CORK", flag(bit::CORK, setting::CORK), ""),
    opt(TCP, libc::TCP_KEEPIDLE, "TCP_KEEPIDLE", Special, ""),
    opt(TCP, libc::TCP_KEEPINTVL, "TCP_KEEPINTVL", Special, ""),
    opt(TCP, libc::TCP_KEEPCNT, "TCP_KEEPCNT", Special, ""),
    opt(
        TCP,
        libc::TCP_SYNCNT,
        "TCP_SYNCNT",
        told(setting::SYNCNT, 1, 127, 7),
        "7 unless set, where Linux has 6: RFC 9293 asks for three minutes (MUST-23)",
    ),
    opt(TCP, libc::TCP_LINGER2, "TCP_LINGER2", Special, "60 unless set"),
    opt(
        TCP,
        libc::TCP_DEFER_ACCEPT,
        "TCP_DEFER_ACCEPT",
        Special,
        "connections that wait count against the backlog",
    ),
    opt(
        TCP,
        libc::TCP_WINDOW_CLAMP,
        "TCP_WINDOW_CLAMP",
        Special,
        "bounds the receive buffer, and so the window",
    ),
    opt(TCP, libc::TCP_INFO, "TCP_INFO", Engine, TCP_INFO_NOTE),
    opt(
        TCP,
        libc::TCP_QUICKACK,
        "TCP_QUICKACK",
        Special,
        "reads whether ACKs go out at once just now",
    ),
    opt(TCP, libc::TCP_CONGESTION, "TCP_CONGESTION", Engine, ""),
    opt(TCP, libc::TCP_CC_INFO, "TCP_CC_INFO", Engine, CC_INFO_NOTE),
    opt(TCP, libc::TCP_THIN_LINEAR_TIMEOUTS, "TCP_THIN_LINEAR_TIMEOUTS", only(0), ""),
    opt(TCP, libc::TCP_THIN_DUPACK, "TCP_THIN_DUPACK", only(0), ""),
    opt(TCP, libc::TCP_USER_TIMEOUT, "TCP_USER_TIMEOUT", Special, ""),
    opt(
        TCP,
        libc::TCP_REPAIR,
        "TCP_REPAIR",
        Effect::Only { value: 0, otherwise: libc::EPERM },
        "needs a privilege on Linux",
    ),
    opt(
        TCP,
        libc::TCP_FASTOPEN,
        "TCP_FASTOPEN",
        Engine,
        "RFC 7413; with the modes of `--tcp fast-open`. Each shard counts the connections that it \
         limits",
    ),
    opt(
        TCP,
        TCP_FASTOPEN_KEY,
        "TCP_FASTOPEN_KEY",
        Engine,
        "16 bytes, or 32 with a backup key; the cookies are those of Linux for the same key",
    ),
    opt(
        TCP,
        libc::TCP_FASTOPEN_CONNECT,
        "TCP_FASTOPEN_CONNECT",
        Special,
        "each shard keeps the cookies of 1024 servers",
    ),
    opt(
        TCP,
        libc::TCP_NOTSENT_LOWAT,
        "TCP_NOTSENT_LOWAT",
        Special,
        "honoured by send, poll, select and epoll; a send below it may go 16 to 64 KiB beyond",
    ),
    opt(TCP, TCP_SAVE_SYN, "TCP_SAVE_SYN", Engine, "0 and 1; 2 (with the link header): EINVAL"),
    opt(TCP, TCP_SAVED_SYN, "TCP_SAVED_SYN", Special, "read only, and once"),
    opt(TCP, TCP_ULP, "TCP_ULP", Special, "reads none; setting: ENOENT, no kernel TLS"),
    opt(TCP, TCP_INQ, "TCP_INQ", kept(0, 1, 0), ""),
    opt(TCP, libc::TCP_MD5SIG, "TCP_MD5SIG", refused(libc::ENOPROTOOPT), ""),
    opt(IP, libc::IP_TOS, "IP_TOS", Special, ""),
    opt(IP, libc::IP_TTL, "IP_TTL", Special, ""),
    opt(IP, libc::IP_OPTIONS, "IP_OPTIONS", Special, "none can be set"),
    opt(
        IP,
        libc::IP_RECVOPTS,
        "IP_RECVOPTS",
        Special,
        "of \"ping\" sockets: what they send has no IP options, so what answers it has none to be \
         told; of others only 0, else ENOPROTOOPT",
    ),
    opt(IP, libc::IP_RETOPTS, "IP_RETOPTS", Special, "as IP_RECVOPTS"),
    opt(IP, libc::IP_PKTINFO, "IP_PKTINFO", flag(bit::PKTINFO, 0), ""),
    opt(IP, libc::IP_MTU_DISCOVER, "IP_MTU_DISCOVER", Special, "of datagrams"),
    opt(IP, libc::IP_RECVERR, "IP_RECVERR", flag(bit::RECVERR, setting::RECVERR), "of datagrams"),
    opt(IP, libc::IP_RECVTTL, "IP_RECVTTL", flag(bit::RECVTTL, 0), ""),
    opt(IP, libc::IP_RECVTOS, "IP_RECVTOS", flag(bit::RECVTOS, 0), ""),
    opt(IP, libc::IP_MTU, "IP_MTU", Engine, "read only"),
    opt(IP, libc::IP_FREEBIND, "IP_FREEBIND", asked(0), ""),
    opt(
        IP,
        libc::IP_TRANSPARENT,
        "IP_TRANSPARENT",
        Effect::Only { value: 0, otherwise: libc::EPERM },
        "needs a privilege on Linux",
    ),
    opt(
        IP,
        libc::IP_RECVORIGDSTADDR,
        "IP_RECVORIGDSTADDR",
        flag(bit::ORIGDSTADDR, 0),
        "of UDP; nothing redirects, so that it is where the datagram was sent to",
    ),
    opt(IP, libc::IP_MINTTL, "IP_MINTTL", told(setting::MIN_TTL, 0, 255, 0), "of TCP, as on Linux"),
    opt(
        IP,
        libc::IP_BIND_ADDRESS_NO_PORT,
        "IP_BIND_ADDRESS_NO_PORT",
        kept(0, 1, 0),
        "a permission: the port is chosen at bind all the same",
    ),
    opt(
        IP,
        IP_LOCAL_PORT_RANGE,
        "IP_LOCAL_PORT_RANGE",
        Special,
        "within the range of the run, as on Linux",
    ),
    opt(IP, libc::IP_MULTICAST_IF, "IP_MULTICAST_IF", Special, ""),
    opt(
        IP,
        libc::IP_MULTICAST_TTL,
        "IP_MULTICAST_TTL",
        Special,
        "0 reaches members on this host only",
    ),
    opt(IP, libc::IP_MULTICAST_LOOP, "IP_MULTICAST_LOOP", Special, ""),
    opt(IP, libc::IP_ADD_MEMBERSHIP, "IP_ADD_MEMBERSHIP", EngineSet, ""),
    opt(IP, libc::IP_DROP_MEMBERSHIP, "IP_DROP_MEMBERSHIP", EngineSet, ""),
    opt(IP, libc::IP_ADD_SOURCE_MEMBERSHIP, "IP_ADD_SOURCE_MEMBERSHIP", EngineSet, ""),
    opt(IP, libc::IP_DROP_SOURCE_MEMBERSHIP, "IP_DROP_SOURCE_MEMBERSHIP", EngineSet, ""),
    opt(IP, MCAST_JOIN_GROUP, "MCAST_JOIN_GROUP", EngineSet, ""),
    opt(IP, MCAST_LEAVE_GROUP, "MCAST_LEAVE_GROUP", EngineSet, ""),
    opt(IP, MCAST_JOIN_SOURCE_GROUP, "MCAST_JOIN_SOURCE_GROUP", EngineSet, ""),
    opt(IP, MCAST_LEAVE_SOURCE_GROUP, "MCAST_LEAVE_SOURCE_GROUP", EngineSet, ""),
    opt(
        IP,
        libc::IP_MULTICAST_ALL,
        "IP_MULTICAST_ALL",
        // Off by default on IPv6 sockets, because Linux's `inet6_create` does not set this option.
        Effect::Asked { default: 1, default_v6: 0 },
        "off before it is set on an AF_INET6 socket",
    ),
    opt(V6, libc::IPV6_UNICAST_HOPS, "IPV6_UNICAST_HOPS", Special, ""),
    opt(
        V6,
        IPV6_MINHOPCOUNT,
        "IPV6_MINHOPCOUNT",
        told(setting::MIN_HOPS, 0, 255, 0),
        "of TCP, as on Linux",
    ),
    opt(V6, libc::IPV6_MULTICAST_IF, "IPV6_MULTICAST_IF", asked(0), ""),
    opt(
        V6,
        libc::IPV6_MULTICAST_HOPS,
        "IPV6_MULTICAST_HOPS",
        Special,
        "0 reaches members on this host only, with IPV6_MULTICAST_LOOP 0 nobody",
    ),
    opt(
        V6,
        libc::IPV6_MULTICAST_LOOP,
        "IPV6_MULTICAST_LOOP",
        told(setting::MULTICAST_LOOP_V6, 0, 1, 1),
        "",
    ),
    opt(V6, IPV6_MULTICAST_ALL, "IPV6_MULTICAST_ALL", asked(1), ""),
    opt(V6, libc::IPV6_ADD_MEMBERSHIP, "IPV6_ADD_MEMBERSHIP", EngineSet, ""),
    opt(V6, libc::IPV6_DROP_MEMBERSHIP, "IPV6_DROP_MEMBERSHIP", EngineSet, ""),
    opt(V6, MCAST_JOIN_GROUP, "MCAST_JOIN_GROUP", EngineSet, ""),
    opt(V6, MCAST_LEAVE_GROUP, "MCAST_LEAVE_GROUP", EngineSet, ""),
    opt(V6, MCAST_JOIN_SOURCE_GROUP, "MCAST_JOIN_SOURCE_GROUP", EngineSet, ""),
    opt(V6, MCAST_LEAVE_SOURCE_GROUP, "MCAST_LEAVE_SOURCE_GROUP", EngineSet, ""),
    opt(V6, libc::IPV6_MTU_DISCOVER, "IPV6_MTU_DISCOVER", Special, "of datagrams"),
    opt(
        V6,
        libc::IPV6_MTU,
        "IPV6_MTU",
        Special,
        "reads the path MTU; setting bounds the packets of datagrams",
    ),
    opt(
        V6,
        libc::IPV6_RECVERR,
        "IPV6_RECVERR",
        flag(bit::RECVERR_V6, setting::RECVERR_V6),
        "as IP_RECVERR",
    ),
    opt(V6, libc::IPV6_V6ONLY, "IPV6_V6ONLY", Special, ""),
    opt(V6, libc::IPV6_RECVPKTINFO, "IPV6_RECVPKTINFO", flag(bit::PKTINFO_V6, 0), ""),
    opt(V6, libc::IPV6_RECVHOPLIMIT, "IPV6_RECVHOPLIMIT", flag(bit::RECVHOPLIMIT, 0), ""),
    opt(V6, libc::IPV6_RECVTCLASS, "IPV6_RECVTCLASS", flag(bit::RECVTCLASS, 0), ""),
    opt(V6, libc::IPV6_TCLASS, "IPV6_TCLASS", Special, ""),
    opt(
        V6,
        libc::IPV6_RECVORIGDSTADDR,
        "IPV6_RECVORIGDSTADDR",
        flag(bit::ORIGDSTADDR_V6, 0),
        "as IP_RECVORIGDSTADDR",
    ),
    opt(
        V6,
        libc::IPV6_DONTFRAG,
        "IPV6_DONTFRAG",
        Special,
        "of datagrams; not by a control message",
    ),
    opt(V6, libc::IPV6_FREEBIND, "IPV6_FREEBIND", asked(0), ""),
    opt(
        V6,
        libc::IPV6_TRANSPARENT,
        "IPV6_TRANSPARENT",
        Effect::Only { value: 0, otherwise: libc::EPERM },
        "needs a privilege on Linux",
    ),
    opt(
        UDP,
        libc::UDP_CORK,
        "UDP_CORK",
        Special,
        "as MSG_MORE with each call, until it is taken off",
    ),
    opt(
        UDP,
        UDP_SEGMENT,
        "UDP_SEGMENT",
        kept(0, 65535, 0),
        "parts that the path does not carry: EMSGSIZE, as Linux 6.18",
    ),
    opt(
        UDP,
        UDP_GRO,
        "UDP_GRO",
        flag(bit::UDP_GRO, 0),
        "datagrams come together that this run sent with UDP_SEGMENT, or the host over a TAP \
         device; through the gateway, and with a filter, each comes alone",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_option_is_listed_twice() {
        let mut seen = std::collections::BTreeSet::new();
        for option in OPTIONS {
            assert!(seen.insert((option.level, option.name)), "{}", option.text);
        }
    }
}
