//! The BPF program that distributes flows among the queues of a TAP device (TUNSETSTEERINGEBPF), or
//! among packet sockets of an interface (PACKET_FANOUT_EBPF).
//!
//! Without such a program, the kernel selects the queue on which a frame of the same flow was last
//! sent.

use crate::assembler::{BpfAssembler, BpfInstruction, If, Jump, Op, Reg, Size};

/// Distributes flows among queues by SipHash-1-3 of the flow's two addresses and ports. The key is
/// known only to this host.
///
/// The endpoints are ordered: the smaller address first or, if the addresses are equal, the smaller
/// port first. The message has both addresses, then both ports in that order, little-endian:
///
/// - IPv4 addresses are one 32-bit word. IPv6 addresses are two 64-bit words, the upper half first.
/// - The ports are one 32-bit word, with the first port in the upper half.
///
/// The number of the queue is taken from the lowest bits of the upper half of the hash.
///
/// For fragments, both ports count as 0. Frames other than TCP and UDP over IP go to the first
/// queue. IPv6 packets with more than four extension headers, or with IPv4-mapped addresses, go to
/// the first queue as well.
#[derive(Debug, Clone, Copy)]
pub struct Steering {
    /// Secret key of the hash by which flows are distributed.
    pub key: [u64; 2],
    /// Number of queues among which flows are distributed, a power of two.
    pub queues: u32,
}

/// Header at which the bytes start that the program can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The Ethernet header, as for the queues of a TAP device.
    Link,
    /// The IP header, as for packet sockets in a fanout group.
    Network,
}

impl Place {
    fn ethertype_at(self) -> i32 {
        match self {
            Self::Link => 12,
            Self::Network => SKF_LL_OFF + 12,
        }
    }

    /// Returns the offset of the IP header. VLAN tags need not be considered, because the kernel
    /// keeps them outside the frame's bytes.
    fn ip_at(self) -> i32 {
        match self {
            Self::Link => 14,
            Self::Network => 0,
        }
    }
}

/// Base of offsets from the link header in load instructions (linux/filter.h), regardless of where
/// the program's bytes start.
const SKF_LL_OFF: i32 = -0x20_0000;
const ETHERTYPE_IPV4: i32 = 0x0800;
const ETHERTYPE_IPV6: i32 = 0x86dd;

// Offsets in the IPv4 header (RFC 791 §3.1).
const V4_FRAGMENT_AT: i32 = 6;
/// Mask of the more-fragments bit and the offset in the IPv4 fragment field.
const V4_FRAGMENT: i32 = 0x3fff;
const V4_PROTOCOL_AT: i32 = 9;
const V4_ADDRESSES_AT: i32 = 12;

// Offsets in the IPv6 header and its extension headers (RFC 8200 §3, §4).
const V6_NEXT_AT: i32 = 6;
const V6_ADDRESSES_AT: i32 = 8;
const V6_HEADER_LEN: i32 = 40;
const V6_FRAGMENT_AT: i32 = 2;
/// Mask of the offset and the more-fragments bit in the IPv6 fragment header.
const V6_FRAGMENT: i32 = 0xfff9;
const V6_FRAGMENT_LEN: i32 = 8;
/// Maximum number of IPv6 extension headers that the BPF program skips. RFC 8200 §4.1 recommends an
/// order in which at most four headers precede TCP, not counting those of IPsec.
const V6_EXTENSIONS_MAX: usize = 4;

const TCP: i32 = 6;
const UDP: i32 = 17;
const HOP_BY_HOP: i32 = 0;
const ROUTING: i32 = 43;
const FRAGMENT: i32 = 44;
const DESTINATION_OPTIONS: i32 = 60;

/// Registers of the SipHash state. `SCRATCH` is a register for temporary values.
const STATE: [Reg; 4] = [Reg::R1, Reg::R2, Reg::R3, Reg::R4];
const SCRATCH: Reg = Reg::R0;
/// Register of the last word of the addresses that is hashed. Before this word is loaded, the
/// register holds the offset of the transport header.
const LAST: Reg = Reg::R7;
const PORTS: Reg = Reg::R8;

impl Steering {
    /// Returns the BPF program. Its argument is the packet, and its result is the number of the
    /// queue.
    pub fn program(&self, place: Place) -> Vec<BpfInstruction> {
        let ip = place.ip_at();
        let mut p = BpfAssembler::default();
        p.alu(Op::Move, Reg::R6, Reg::R1);
        p.load(Size::Half, place.ethertype_at());
        let v4 = p.jump_if(Reg::R0, If::Equal, ETHERTYPE_IPV4);
        let mut others = vec![p.jump_if(Reg::R0, If::NotEqual, ETHERTYPE_IPV6)];

        transport_v6(&mut p, ip, &mut others);
        ends_v6(&mut p, ip, &mut others);
        self.begin(&mut p);
        for place in 0..3 {
            p.recall(Reg::R5, place);
            absorb(&mut p, Reg::R5);
        }
        // The last byte of SipHash's last word is the length of the message, 36 bytes.
        p.constant(Reg::R5, 36 << 56);
        let last = p.jump();

        p.land([v4]);
        transport_v4(&mut p, ip, &mut others);
        ends_v4(&mut p, ip);
        self.begin(&mut p);
        p.constant(Reg::R5, 12 << 56);

        p.land([last]);
        p.alu(Op::Or, PORTS, Reg::R5);
        absorb(&mut p, LAST);
        absorb(&mut p, PORTS);
        self.end(&mut p);

        p.land(others);
        p.alu(Op::Move, Reg::R0, 0);
        p.exit();
        p.finish()
    }

    /// Emits the initialization of the hash state.
    fn begin(&self, p: &mut BpfAssembler) {
        // Initial state of SipHash from the paper: "somepseudorandomlygeneratedbytes".
        let words = [
            0x736f_6d65_7073_6575,
            0x646f_7261_6e64_6f6d,
            0x6c79_6765_6e65_7261,
            0x7465_6462_7974_6573,
        ];
        for (n, (reg, word)) in STATE.into_iter().zip(words).enumerate() {
            p.constant(reg, self.key[n % 2] ^ word);
        }
    }

    /// Emits the finalization of the hash, and the computation of the queue's number.
    fn end(&self, p: &mut BpfAssembler) {
        let [v0, v1, v2, v3] = STATE;
        p.alu(Op::Xor, v2, 0xff);
        for _ in 0..3 {
            round(p);
        }
        p.alu(Op::Move, Reg::R0, v0);
        for v in [v1, v2, v3] {
            p.alu(Op::Xor, Reg::R0, v);
        }
        p.alu(Op::ShiftRight, Reg::R0, 32);
        p.alu(Op::And, Reg::R0, self.queues as i32 - 1);
        p.exit();
    }
}

/// Emits the instructions that hash one 64-bit word of the message.
fn absorb(p: &mut BpfAssembler, word: Reg) {
    let [v0, .., v3] = STATE;
    p.alu(Op::Xor, v3, word);
    round(p);
    p.alu(Op::Xor, v0, word);
}

/// Emits SipRound, figure 2.1 of "SipHash: a fast short-input PRF" (Aumasson and Bernstein, 2012).
fn round(p: &mut BpfAssembler) {
    let [v0, v1, v2, v3] = STATE;
    half_round(p, v0, v1, 13);
    half_round(p, v2, v3, 16);
    rotate(p, v0, 32);
    half_round(p, v0, v3, 21);
    half_round(p, v2, v1, 17);
    rotate(p, v2, 32);
}

fn half_round(p: &mut BpfAssembler, one: Reg, other: Reg, bits: i32) {
    p.alu(Op::Add, one, other);
    rotate(p, other, bits);
    p.alu(Op::Xor, other, one);
}

fn rotate(p: &mut BpfAssembler, reg: Reg, left: i32) {
    p.alu(Op::Move, SCRATCH, reg);
    p.alu(Op::ShiftRight, SCRATCH, 64 - left);
    p.alu(Op::ShiftLeft, reg, left);
    p.alu(Op::Or, reg, SCRATCH);
}

/// Emits loads of the source and destination ports of an IPv4 packet to [`PORTS`]; 0 for a
/// fragment.
fn transport_v4(p: &mut BpfAssembler, ip: i32, others: &mut Vec<Jump>) {
    p.alu(Op::Move, PORTS, 0);
    p.load(Size::Half, ip + V4_FRAGMENT_AT);
    p.alu(Op::And, Reg::R0, V4_FRAGMENT);
    let fragment = p.jump_if(Reg::R0, If::NotEqual, 0);
    p.load(Size::Byte, ip + V4_PROTOCOL_AT);
    let tcp = p.jump_if(Reg::R0, If::Equal, TCP);
    others.push(p.jump_if(Reg::R0, If::NotEqual, UDP));
    p.land([tcp]);
    // Multiply by 4: the header length field counts words of 32 bits.
    p.load(Size::Byte, ip);
    p.alu(Op::And, Reg::R0, 0x0f);
    p.alu(Op::ShiftLeft, Reg::R0, 2);
    p.alu(Op::Move, LAST, Reg::R0);
    p.load_from(Size::Word, LAST, ip);
    p.alu(Op::Move, PORTS, Reg::R0);
    p.land([fragment]);
}

/// Emits loads of source and destination address to [`LAST`], the smaller one first. The ports are
/// put in the same order.
fn ends_v4(p: &mut BpfAssembler, ip: i32) {
    let (src, dst) = (Reg::R1, Reg::R2);
    p.load(Size::Word, ip + V4_ADDRESSES_AT);
    p.alu(Op::Move, LAST, Reg::R0);
    p.load(Size::Word, ip + V4_ADDRESSES_AT + 4);
    p.alu(Op::Move, dst, Reg::R0);
    p.alu(Op::Move, src, LAST);
    let swap = p.jump_if(src, If::Greater, dst);
    let mut in_order = vec![p.jump_if(src, If::Less, dst)];
    in_order.push(jump_if_ports_in_order(p));
    p.land([swap]);
    exchange(p, src, dst);
    exchange_ports(p);
    p.land(in_order);
    p.alu(Op::ShiftLeft, dst, 32);
    p.alu(Op::Move, LAST, src);
    p.alu(Op::Or, LAST, dst);
}

/// Emits loads of the source and destination ports of an IPv6 packet to [`PORTS`], after its
/// extension headers; 0 for a fragment.
fn transport_v6(p: &mut BpfAssembler, ip: i32, others: &mut Vec<Jump>) {
    // Registers for the offset and the protocol number of the next header.
    let (at, next) = (LAST, Reg::R9);
    p.alu(Op::Move, PORTS, 0);
    p.alu(Op::Move, at, ip + V6_HEADER_LEN);
    p.load(Size::Byte, ip + V6_NEXT_AT);
    p.alu(Op::Move, next, Reg::R0);
    let (mut transports, mut fragments) = (Vec::new(), Vec::new());
    for _ in 0..V6_EXTENSIONS_MAX {
        let fragment = p.jump_if(next, If::Equal, FRAGMENT);
        let sized = [HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS]
            .map(|header| p.jump_if(next, If::Equal, header));
        transports.push(p.jump());

        p.land([fragment]);
        p.load_from(Size::Half, at, V6_FRAGMENT_AT);
        p.alu(Op::And, Reg::R0, V6_FRAGMENT);
        // An atomic fragment (offset 0, no more fragments) is a complete packet (RFC 6946).
        fragments.push(p.jump_if(Reg::R0, If::NotEqual, 0));
        p.load_from(Size::Byte, at, 0);
        p.alu(Op::Move, next, Reg::R0);
        p.alu(Op::Add, at, V6_FRAGMENT_LEN);
        let passed = p.jump();

        p.land(sized);
        p.load_from(Size::Byte, at, 0);
        p.alu(Op::Move, next, Reg::R0);
        // The length field of an extension header counts units of 8 bytes, without the first unit.
        p.load_from(Size::Byte, at, 1);
        p.alu(Op::ShiftLeft, Reg::R0, 3);
        p.alu(Op::Add, at, Reg::R0);
        p.alu(Op::Add, at, 8);
        p.land([passed]);
    }
    p.land(transports);
    let tcp = p.jump_if(next, If::Equal, TCP);
    others.push(p.jump_if(next, If::NotEqual, UDP));
    p.land([tcp]);
    p.load_from(Size::Word, at, 0);
    p.alu(Op::Move, PORTS, Reg::R0);
    p.land(fragments);
}

/// Emits loads of the four halves of source and destination address, the smaller one first. Three
/// are stored on the stack, the fourth in [`LAST`]. The ports are put in the same order.
fn ends_v6(p: &mut BpfAssembler, ip: i32, others: &mut Vec<Jump>) {
    for half in 0..4u8 {
        let at = ip + V6_ADDRESSES_AT + 8 * i32::from(half);
        p.load(Size::Word, at);
        p.alu(Op::Move, LAST, Reg::R0);
        p.alu(Op::ShiftLeft, LAST, 32);
        p.load(Size::Word, at + 4);
        p.alu(Op::Or, LAST, Reg::R0);
        p.keep(half, LAST);
    }
    let [src, src_low, dst, dst_low] = [Reg::R1, Reg::R2, Reg::R3, Reg::R4];
    for (reg, place) in [src, src_low, dst, dst_low].into_iter().zip(0..) {
        p.recall(reg, place);
    }
    // Addresses in ::ffff:0:0/96 never appear in packets (RFC 4291 §2.5.5.2).
    for (high, low) in [(src, src_low), (dst, dst_low)] {
        let plain = p.jump_if(high, If::NotEqual, 0);
        p.alu(Op::Move, SCRATCH, low);
        p.alu(Op::ShiftRight, SCRATCH, 32);
        others.push(p.jump_if(SCRATCH, If::Equal, 0xffff));
        p.land([plain]);
    }
    let (mut swap, mut in_order) = (Vec::new(), Vec::new());
    for (one, other) in [(src, dst), (src_low, dst_low)] {
        swap.push(p.jump_if(one, If::Greater, other));
        in_order.push(p.jump_if(one, If::Less, other));
    }
    in_order.push(jump_if_ports_in_order(p));
    p.land(swap);
    exchange(p, src, dst);
    exchange(p, src_low, dst_low);
    exchange_ports(p);
    p.land(in_order);
    for (place, reg) in (0..).zip([src, src_low, dst]) {
        p.keep(place, reg);
    }
    p.alu(Op::Move, LAST, dst_low);
}

/// Emits a jump that is taken if the two ports are in ascending order or equal.
fn jump_if_ports_in_order(p: &mut BpfAssembler) -> Jump {
    let first = Reg::R5;
    p.alu(Op::Move, first, PORTS);
    p.alu(Op::ShiftRight, first, 16);
    p.alu(Op::Move, SCRATCH, PORTS);
    p.alu(Op::And, SCRATCH, 0xffff);
    let greater = p.jump_if(first, If::Greater, SCRATCH);
    let in_order = p.jump();
    p.land([greater]);
    in_order
}

fn exchange_ports(p: &mut BpfAssembler) {
    p.alu(Op::Move, SCRATCH, PORTS);
    p.alu(Op::ShiftRight, SCRATCH, 16);
    p.alu(Op::And, PORTS, 0xffff);
    p.alu(Op::ShiftLeft, PORTS, 16);
    p.alu(Op::Or, PORTS, SCRATCH);
}

fn exchange(p: &mut BpfAssembler, one: Reg, other: Reg) {
    p.alu(Op::Move, SCRATCH, one);
    p.alu(Op::Move, one, other);
    p.alu(Op::Move, other, SCRATCH);
}
