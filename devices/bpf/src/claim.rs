//! BPF programs that select the frames for our network stack on an interface that the kernel uses,
//! too.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use crate::assembler::{BpfAssembler, BpfInstruction, If, Jump, Op, Reg, Size};
use crate::sys::SocketMap;

/// Transport protocol of a [`PortRange`], with its IP protocol number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
}

/// A range of TCP or UDP ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRange {
    /// Transport protocol of the ports.
    pub transport: Transport,
    /// Lowest port.
    pub first: u16,
    /// Highest port, not less than `first`.
    pub last: u16,
}

/// Selection of the frames of an interface that our network stack receives. The kernel receives all
/// other frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// Frames to an Ethernet address that only the stack uses. Includes ARP requests and neighbour
    /// solicitations for the stack's IP addresses, which are sent to broadcast or multicast
    /// addresses.
    Station {
        /// Ethernet address of our network stack.
        mac: [u8; 6],
        /// IP addresses of our network stack.
        addresses: Vec<IpAddr>,
    },
    /// Packets to some ports of IP addresses that the stack shares with the kernel.
    Ports {
        /// IP addresses shared by our network stack and the kernel.
        addresses: Vec<IpAddr>,
        /// Ports whose packets the stack receives.
        ports: Vec<PortRange>,
    },
}

/// Instructions with which a program reads the bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Load instructions. If an instruction reads beyond the frame, the kernel ends the program.
    Loads,
    /// Memory accesses by pointer, before each of which the program must compare it with the end of
    /// the frame.
    Pointers,
}

/// Bit in the first byte of Ethernet addresses that marks group addresses (IEEE 802.3 §3.2.3).
const GROUP_BIT: i32 = 1;
const ETHERTYPE_AT: i16 = 12;
const IP_AT: i16 = 14;
const ETHERTYPE_IPV4: i32 = 0x0800;
const ETHERTYPE_ARP: i32 = 0x0806;
const ETHERTYPE_IPV6: i32 = 0x86dd;
// Offsets and values of ARP (RFC 826), for IPv4 over Ethernet.
const ARP_OPERATION_AT: i16 = IP_AT + 6;
const ARP_TARGET_AT: i16 = IP_AT + 24;
const ARP_REPLY: i32 = 2;
// Offsets in the IPv4 header (RFC 791, section 3.1).
const V4_FRAGMENT_AT: i16 = IP_AT + 6;
/// Mask of the more-fragments bit and the offset in the IPv4 fragment field.
const V4_FRAGMENT: i32 = 0x3fff;
const V4_PROTOCOL_AT: i16 = IP_AT + 9;
const V4_DESTINATION_AT: i16 = IP_AT + 16;
// Offsets in the IPv6 header (RFC 8200, section 3), and in NDP messages (RFC 4861, sections 4.3 and
// 4.4).
const V6_NEXT_AT: i16 = IP_AT + 6;
const V6_DESTINATION_AT: i16 = IP_AT + 24;
const V6_PAYLOAD_AT: i16 = IP_AT + 40;
const NDP_TARGET_AT: i16 = V6_PAYLOAD_AT + 8;
const NEIGHBOR_SOLICITATION: i32 = 135;
const NEIGHBOR_ADVERTISEMENT: i32 = 136;
const ICMP: i32 = 1;
const ICMPV6: i32 = 58;
/// ICMP types that report errors: destination unreachable, time exceeded, parameter problem.
const ICMP_ERRORS: [i32; 3] = [3, 11, 12];
/// Highest ICMPv6 type that reports an error (RFC 4443 §2.1).
const ICMPV6_ERROR_LAST: i32 = 4;
/// Offset of the destination port in TCP and UDP headers.
const PORT_AT: i16 = 2;

// Constants of linux/bpf.h.
const XDP_PASS: i32 = 2;
const BPF_FUNC_REDIRECT_MAP: i32 = 51;
const TCX_NEXT: i32 = -1;
const TCX_DROP: i32 = 2;
/// Offsets of the fields `data`, `data_end` and `rx_queue_index` in `struct xdp_md`.
const XDP_DATA: i16 = 0;
const XDP_DATA_END: i16 = 4;
const XDP_QUEUE: i16 = 16;
/// Offset of the field `vlan_present` in `struct __sk_buff`.
const SKB_VLAN_PRESENT: i16 = 20;
/// Result of a socket filter that passes the whole frame to the socket.
const WHOLE: i32 = -1;

/// Registers of the program's context, of the start and end of the frame, and of the transport
/// header. The latter is a pointer, or an offset with [`Access::Loads`].
const CONTEXT: Reg = Reg::R6;
const DATA: Reg = Reg::R7;
const DATA_END: Reg = Reg::R8;
const TRANSPORT: Reg = Reg::R9;

impl Claim {
    /// Returns the XDP program of an interface. Frames for the stack go to the XDP socket of their
    /// queue, if the queue has one. All other frames go to the kernel.
    pub fn redirect(&self, sockets: &SocketMap) -> Vec<BpfInstruction> {
        self.redirect_or(sockets.as_fd(), XDP_PASS)
    }

    /// Returns the program of [`Self::redirect`], except that frames for the stack on a queue
    /// without a socket get `result`.
    fn redirect_or(&self, sockets: BorrowedFd<'_>, result: i32) -> Vec<BpfInstruction> {
        let mut p = Program::new(Access::Pointers);
        self.choose(&mut p);
        p.asm.map(Reg::R1, sockets);
        p.asm.peek(Size::Word, Reg::R2, CONTEXT, XDP_QUEUE);
        p.asm.alu(Op::Move, Reg::R3, result);
        p.asm.call(BPF_FUNC_REDIRECT_MAP);
        p.asm.exit();
        p.finish(XDP_PASS)
    }

    /// Returns the filter of a packet socket that receives the frames for the stack, and the frames
    /// of [`Self::copies`].
    pub fn filter(&self) -> Vec<BpfInstruction> {
        let mut p = Program::new(Access::Loads);
        self.choose(&mut p);
        p.asm.alu(Op::Move, Reg::R0, WHOLE);
        p.asm.exit();
        p.land_others();
        p.shared();
        p.asm.alu(Op::Move, Reg::R0, WHOLE);
        p.asm.exit();
        p.finish(0)
    }

    /// Returns the filter of a packet socket that is used together with an XDP program of
    /// [`Self::redirect`]. The socket receives copies of ARP and NDP answers and of ICMP errors,
    /// which both the kernel and the stack need.
    pub fn copies() -> Vec<BpfInstruction> {
        let mut p = Program::new(Access::Loads);
        p.shared();
        p.asm.alu(Op::Move, Reg::R0, WHOLE);
        p.asm.exit();
        p.finish(0)
    }

    /// Returns the filter of a packet socket that is used together with an XDP program of
    /// [`Self::redirect`] for [`Claim::Station`]. The socket receives copies of multicast and
    /// broadcast frames, for example ARP requests for an address that is assigned to the stack
    /// later.
    pub fn groups() -> Vec<BpfInstruction> {
        let mut p = Program::new(Access::Loads);
        p.require_no_tag();
        p.load(Size::Byte, 0);
        p.asm.alu(Op::And, Reg::R0, GROUP_BIT);
        p.require(GROUP_BIT);
        p.asm.alu(Op::Move, Reg::R0, WHOLE);
        p.asm.exit();
        p.finish(0)
    }

    /// Returns the tcx program that drops the frames selected for the stack, before the kernel
    /// processes them. Packet sockets receive frames before this program runs.
    pub fn withhold(&self) -> Vec<BpfInstruction> {
        let mut p = Program::new(Access::Loads);
        self.choose(&mut p);
        p.asm.alu(Op::Move, Reg::R0, TCX_DROP);
        p.asm.exit();
        p.finish(TCX_NEXT)
    }

    /// Emits the test whether a frame is for the stack. If not, the program jumps to the next
    /// [`Program::land_others`].
    fn choose(&self, p: &mut Program) {
        match self {
            Self::Station { mac, addresses } => p.station(*mac, addresses),
            Self::Ports { addresses, ports } => p.ports(addresses, ports),
        }
    }
}

/// Returns whether `addresses` contains IPv4 addresses, and whether it contains IPv6 addresses.
fn families(addresses: &[IpAddr]) -> [bool; 2] {
    [true, false].map(|is_v4| addresses.iter().any(|address| address.is_ipv4() == is_v4))
}

/// A BPF program under construction, and the pending jumps to its end for frames that it does not
/// select.
struct Program {
    asm: BpfAssembler,
    access: Access,
    others: Vec<Jump>,
}

impl Program {
    fn new(access: Access) -> Self {
        let mut asm = BpfAssembler::default();
        asm.alu(Op::Move, CONTEXT, Reg::R1);
        if access == Access::Pointers {
            asm.peek(Size::Word, DATA, CONTEXT, XDP_DATA);
            asm.peek(Size::Word, DATA_END, CONTEXT, XDP_DATA_END);
        }
        Self { asm, access, others: Vec::new() }
    }

    /// Completes the program. `result` is its result for frames that it does not select.
    fn finish(mut self, result: i32) -> Vec<BpfInstruction> {
        self.land_others();
        self.asm.alu(Op::Move, Reg::R0, result);
        self.asm.exit();
        self.asm.finish()
    }

    fn land_others(&mut self) {
        self.asm.land(std::mem::take(&mut self.others));
    }

    /// Emits a load of the frame's bytes at offset `at` to `R0`, as a number. If the frame is
    /// shorter, the program jumps to the next [`Self::land_others`]. With [`Access::Loads`] the
    /// kernel ends the program instead, with result 0.
    fn load(&mut self, size: Size, at: i16) {
        match self.access {
            Access::Loads => self.asm.load(size, at.into()),
            Access::Pointers => self.load_at(size, DATA, at),
        }
    }

    /// Emits a load like [`Self::load`], at an offset from the transport header, whose start is in
    /// the register [`TRANSPORT`].
    fn load_transport(&mut self, size: Size, at: i16) {
        match self.access {
            Access::Loads => self.asm.load_from(size, TRANSPORT, at.into()),
            Access::Pointers => self.load_at(size, TRANSPORT, at),
        }
    }

    fn load_at(&mut self, size: Size, base: Reg, at: i16) {
        self.asm.alu(Op::Move, Reg::R0, base);
        self.asm.alu(Op::Add, Reg::R0, i32::from(at) + size.bytes());
        let behind = self.asm.jump_if(Reg::R0, If::Greater, DATA_END);
        self.others.push(behind);
        self.asm.peek(size, Reg::R0, base, at);
        self.asm.swap(size, Reg::R0);
    }

    /// Emits a test that deselects the frame unless `R0` equals `number`.
    fn require(&mut self, number: i32) {
        let other = self.asm.jump_if(Reg::R0, If::NotEqual, number);
        self.others.push(other);
    }

    /// Emits a jump that is taken if `R0` equals a 32-bit number.
    fn jump_if_word(&mut self, word: u32) -> Jump {
        self.asm.constant(Reg::R1, word.into());
        self.asm.jump_if(Reg::R0, If::Equal, Reg::R1)
    }

    fn jump_to_others(&mut self) {
        let other = self.asm.jump();
        self.others.push(other);
    }

    /// Emits a test of the address at offset `at` of the frame. The frame is deselected unless the
    /// address is one of `addresses`. Only addresses of one IP version are compared.
    fn require_address(&mut self, addresses: &[IpAddr], at: i16, is_v4: bool) {
        let mut found = Vec::new();
        for address in addresses.iter().filter(|address| address.is_ipv4() == is_v4) {
            match address {
                IpAddr::V4(address) => {
                    self.load(Size::Word, at);
                    found.push(self.jump_if_word(address.to_bits()));
                }
                IpAddr::V6(address) => found.push(self.jump_if_v6(address.to_bits(), at)),
            }
        }
        self.jump_to_others();
        self.asm.land(found);
    }

    fn jump_if_v6(&mut self, address: u128, at: i16) -> Jump {
        let mut unlike = Vec::new();
        for (n, shift) in [96, 64, 32, 0].into_iter().enumerate() {
            self.load(Size::Word, at + 4 * n as i16);
            self.asm.constant(Reg::R1, u64::from((address >> shift) as u32));
            unlike.push(self.asm.jump_if(Reg::R0, If::NotEqual, Reg::R1));
        }
        let found = self.asm.jump();
        self.asm.land(unlike);
        found
    }

    fn station(&mut self, [a, b, c, d, e, f]: [u8; 6], addresses: &[IpAddr]) {
        self.load(Size::Half, 0);
        let unlike = self.asm.jump_if(Reg::R0, If::NotEqual, i32::from(u16::from_be_bytes([a, b])));
        self.load(Size::Word, 2);
        let ours = self.jump_if_word(u32::from_be_bytes([c, d, e, f]));
        self.asm.land([unlike]);
        self.load(Size::Half, ETHERTYPE_AT);
        let mut ours = vec![ours];
        let [has_v4, has_v6] = families(addresses);
        // Emit each test only if the stack has addresses of that IP version, because the verifier
        // rejects unreachable instructions.
        let arp = has_v4.then(|| self.asm.jump_if(Reg::R0, If::Equal, ETHERTYPE_ARP));
        if has_v6 {
            self.require(ETHERTYPE_IPV6);
            self.load(Size::Byte, V6_NEXT_AT);
            self.require(ICMPV6);
            self.load(Size::Byte, V6_PAYLOAD_AT);
            self.require(NEIGHBOR_SOLICITATION);
            self.require_address(addresses, NDP_TARGET_AT, false);
            ours.push(self.asm.jump());
        } else {
            self.jump_to_others();
        }
        if has_v4 {
            self.asm.land(arp);
            self.require_address(addresses, ARP_TARGET_AT, true);
        }
        self.asm.land(ours);
    }

    /// Emits a test that deselects frames with a VLAN tag, which belong to the kernel's VLAN
    /// interfaces. The kernel stores the tag outside the frame's bytes.
    fn require_no_tag(&mut self) {
        if self.access == Access::Loads {
            self.asm.peek(Size::Word, Reg::R0, CONTEXT, SKB_VLAN_PRESENT);
            self.require(0);
        }
    }

    fn ports(&mut self, addresses: &[IpAddr], ports: &[PortRange]) {
        self.require_no_tag();
        self.load(Size::Half, ETHERTYPE_AT);
        let [has_v4, has_v6] = families(addresses);
        let has = |it: &Transport| ports.iter().any(|range| range.transport == *it);
        let transports: Vec<_> = [Transport::Tcp, Transport::Udp].into_iter().filter(has).collect();
        let mut found = Vec::new();
        let v4 = has_v4.then(|| self.asm.jump_if(Reg::R0, If::Equal, ETHERTYPE_IPV4));
        if has_v6 {
            self.require(ETHERTYPE_IPV6);
            self.require_address(addresses, V6_DESTINATION_AT, false);
            self.transport_at(V6_PAYLOAD_AT.into());
            self.load(Size::Byte, V6_NEXT_AT);
            found.extend(self.jump_to(&transports));
        } else {
            self.jump_to_others();
        }
        if has_v4 {
            self.asm.land(v4);
            self.require_address(addresses, V4_DESTINATION_AT, true);
            self.load(Size::Half, V4_FRAGMENT_AT);
            self.asm.alu(Op::And, Reg::R0, V4_FRAGMENT);
            self.require(0);
            self.transport_behind_v4();
            self.load(Size::Byte, V4_PROTOCOL_AT);
            found.extend(self.jump_to(&transports));
        }
        let mut ours = Vec::new();
        for transport in transports {
            let here = found.extract_if(.., |(of, _)| *of == transport).map(|(_, jump)| jump);
            self.asm.land(here);
            self.load_transport(Size::Half, PORT_AT);
            for range in ports.iter().filter(|range| range.transport == transport) {
                let below = self.asm.jump_if(Reg::R0, If::Less, i32::from(range.first));
                let above = self.asm.jump_if(Reg::R0, If::Greater, i32::from(range.last));
                ours.push(self.asm.jump());
                self.asm.land([below, above]);
            }
            self.jump_to_others();
        }
        self.asm.land(ours);
    }

    /// Emits a jump for each transport protocol, which is taken if `R0` is the number of the
    /// protocol. A frame of another protocol is deselected.
    fn jump_to(&mut self, transports: &[Transport]) -> Vec<(Transport, Jump)> {
        let jump = |&it: &Transport| (it, self.asm.jump_if(Reg::R0, If::Equal, it as i32));
        let jumps = transports.iter().map(jump).collect();
        self.jump_to_others();
        jumps
    }

    fn transport_at(&mut self, at: i32) {
        match self.access {
            Access::Loads => self.asm.alu(Op::Move, TRANSPORT, at),
            Access::Pointers => {
                self.asm.alu(Op::Move, TRANSPORT, DATA);
                self.asm.alu(Op::Add, TRANSPORT, at);
            }
        }
    }

    /// Emits the computation of the offset of the transport header. The first byte of an IPv4
    /// header contains the header length in units of 4 bytes.
    fn transport_behind_v4(&mut self) {
        self.load(Size::Byte, IP_AT);
        self.asm.alu(Op::And, Reg::R0, 0x0f);
        self.asm.alu(Op::ShiftLeft, Reg::R0, 2);
        match self.access {
            Access::Loads => self.asm.alu(Op::Move, TRANSPORT, Reg::R0),
            Access::Pointers => {
                self.asm.alu(Op::Move, TRANSPORT, DATA);
                self.asm.alu(Op::Add, TRANSPORT, Reg::R0);
            }
        }
        self.asm.alu(Op::Add, TRANSPORT, i32::from(IP_AT));
    }

    /// Emits a test that selects frames that both the kernel and the stack need, for the case that
    /// they share an Ethernet address.
    fn shared(&mut self) {
        self.require_no_tag();
        self.load(Size::Half, ETHERTYPE_AT);
        let v4 = self.asm.jump_if(Reg::R0, If::Equal, ETHERTYPE_IPV4);
        let arp = self.asm.jump_if(Reg::R0, If::Equal, ETHERTYPE_ARP);
        self.require(ETHERTYPE_IPV6);
        self.load(Size::Byte, V6_NEXT_AT);
        self.require(ICMPV6);
        self.load(Size::Byte, V6_PAYLOAD_AT);
        let advertised = self.asm.jump_if(Reg::R0, If::Equal, NEIGHBOR_ADVERTISEMENT);
        let other = self.asm.jump_if(Reg::R0, If::Greater, ICMPV6_ERROR_LAST);
        self.others.push(other);
        let mut both = vec![advertised, self.asm.jump()];

        self.asm.land([arp]);
        self.load(Size::Half, ARP_OPERATION_AT);
        self.require(ARP_REPLY);
        both.push(self.asm.jump());

        self.asm.land([v4]);
        self.load(Size::Byte, V4_PROTOCOL_AT);
        self.require(ICMP);
        self.transport_behind_v4();
        self.load_transport(Size::Byte, 0);
        for kind in ICMP_ERRORS {
            both.push(self.asm.jump_if(Reg::R0, If::Equal, kind));
        }
        self.jump_to_others();
        self.asm.land(both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Kind, load, run};

    const US: [u8; 6] = [2, 0x11, 0x22, 0x33, 0x44, 0x55];
    const ALL: [u8; 6] = [0xff; 6];
    const XDP_DROP: u32 = 1;

    /// Builds an Ethernet frame for a test.
    fn frame(to: [u8; 6], ethertype: u16, body: &[&[u8]]) -> Vec<u8> {
        let mut out = [&to[..], &[2, 0, 0, 0, 0, 9], &ethertype.to_be_bytes()].concat();
        body.iter().for_each(|part| out.extend_from_slice(part));
        out
    }

    fn ipv4(to: [u8; 4], protocol: u8, options: usize, payload: &[u8]) -> Vec<u8> {
        let mut header = vec![0; 20 + options];
        header[0] = 0x40 | (5 + options / 4) as u8;
        header[9] = protocol;
        header[16..20].copy_from_slice(&to);
        frame(US, 0x0800, &[&header, payload])
    }

    fn ipv6(to: &str, next: u8, payload: &[u8]) -> Vec<u8> {
        let mut header = [0; 40];
        (header[0], header[6]) = (0x60, next);
        let to: std::net::Ipv6Addr = to.parse().unwrap();
        header[24..].copy_from_slice(&to.octets());
        frame(US, 0x86dd, &[&header, payload])
    }

    fn to_port(port: u16) -> Vec<u8> {
        [&[0x13, 0x88][..], &port.to_be_bytes(), &[0; 16]].concat()
    }

    fn arp(operation: u8, target: [u8; 4]) -> Vec<u8> {
        let mut body = [0; 28];
        body[7] = operation;
        body[24..].copy_from_slice(&target);
        frame(ALL, 0x0806, &[&body])
    }

    fn solicitation(target: &str) -> Vec<u8> {
        let target: std::net::Ipv6Addr = target.parse().unwrap();
        ipv6("ff02::1:ff00:2", 58, &[&[135, 0, 0, 0, 0, 0, 0, 0], &target.octets()[..]].concat())
    }

    fn addresses() -> Vec<IpAddr> {
        ["10.1.0.2", "200.1.0.3", "fd00:1::2"].map(|text| text.parse().unwrap()).into()
    }

    fn claimed_ports() -> Claim {
        let range = |transport, first, last| PortRange { transport, first, last };
        let (tcp, udp) = (Transport::Tcp, Transport::Udp);
        let ports = vec![range(tcp, 80, 80), range(tcp, 8000, 8010), range(udp, 53, 53)];
        Claim::Ports { addresses: addresses(), ports }
    }

    /// Returns whether the two programs of a claim, as XDP program and as socket filter, select the
    /// frame. Returns `None` without CAP_BPF.
    fn chosen(claim: &Claim, bytes: &[u8]) -> Option<[bool; 2]> {
        // The kernel runs programs only on frames with a complete Ethernet header.
        assert!(bytes.len() >= 14);
        let map = SocketMap::new(1).ok()?;
        let xdp = load(Kind::Xdp, &claim.redirect_or(map.as_fd(), XDP_DROP as i32));
        let ingress = load(Kind::Ingress, &claim.withhold()).expect("verified");
        let by_xdp = run(xdp.expect("verified").as_fd(), bytes).expect("run") == XDP_DROP;
        let by_ingress = match run(ingress.as_fd(), bytes) {
            Ok(result) => result == TCX_DROP as u32,
            // The kernel runs programs of this type only on frames with a complete IP header.
            Err(_) if bytes.len() < 14 + 40 => by_xdp,
            Err(error) => panic!("{error}"),
        };
        for program in [claim.filter(), Claim::copies(), Claim::groups()] {
            load(Kind::SocketFilter, &program).expect("verified");
        }
        Some([by_xdp, by_ingress])
    }

    #[track_caller]
    fn assert_chosen(claim: &Claim, bytes: &[u8], wanted: bool) {
        let Some(chosen) = chosen(claim, bytes) else { return };
        assert_eq!(chosen, [wanted; 2], "{bytes:x?}");
    }

    #[test]
    fn a_station_has_its_frames_and_the_questions_for_it() {
        let claim = Claim::Station { mac: US, addresses: addresses() };
        assert_chosen(&claim, &frame(US, 0x9999, &[]), true);
        assert_chosen(&claim, &ipv4([9, 9, 9, 9], 6, 0, &to_port(1)), true);
        for at in 0..6 {
            let mut to = US;
            to[at] ^= 0x80;
            assert_chosen(&claim, &frame(to, 0x0800, &[&[0; 40]]), false);
        }
        for (target, wanted) in [([10, 1, 0, 2], true), ([200, 1, 0, 3], true), ([9; 4], false)] {
            assert_chosen(&claim, &arp(1, target), wanted);
        }
        for (target, wanted) in [("fd00:1::2", true), ("fd00:1::3", false), ("fd00:2::2", false)] {
            let mut asked = solicitation(target);
            asked[..6].copy_from_slice(&[0x33, 0x33, 0xff, 0, 0, 2]);
            assert_chosen(&claim, &asked, wanted);
            for len in 14..asked.len() {
                assert_chosen(&claim, &asked[..len], false);
            }
        }
        for len in 14..arp(1, [10, 1, 0, 2]).len() {
            assert_chosen(&claim, &arp(1, [10, 1, 0, 2])[..len], false);
        }
    }

    #[test]
    fn ports_are_those_of_the_rules_at_our_addresses() {
        let claim = claimed_ports();
        let (tcp, udp, us) = (6, 17, [10, 1, 0, 2]);
        let cases = [
            (tcp, 80, true),
            (tcp, 79, false),
            (tcp, 81, false),
            (udp, 80, false),
            (tcp, 8000, true),
            (tcp, 8010, true),
            (tcp, 7999, false),
            (tcp, 8011, false),
            (udp, 53, true),
            (tcp, 53, false),
            (1, 80, false),
        ];
        for (protocol, port, wanted) in cases {
            for options in [0, 4, 40] {
                assert_chosen(&claim, &ipv4(us, protocol, options, &to_port(port)), wanted);
            }
            assert_chosen(&claim, &ipv4([10, 1, 0, 9], protocol, 0, &to_port(port)), false);
            assert_chosen(&claim, &ipv6("fd00:1::2", protocol, &to_port(port)), wanted);
            assert_chosen(&claim, &ipv6("fd00:1::3", protocol, &to_port(port)), false);
        }
        // Frames with the port number at the expected offset, but without a transport header there:
        // IPv6 fragments and packets with an extension header.
        assert_chosen(&claim, &ipv6("fd00:1::2", 44, &to_port(80)), false);
        let mut fragment = ipv4(us, tcp, 0, &to_port(80));
        fragment[14 + 7] = 1;
        assert_chosen(&claim, &fragment, false);
        let whole = ipv4(us, tcp, 0, &to_port(80));
        for len in 14..14 + 24 {
            assert_chosen(&claim, &whole[..len], false);
        }
        assert_chosen(&claim, &arp(1, us), false);
        assert_chosen(&claim, &solicitation("fd00:1::2"), false);
    }

    #[test]
    fn claims_of_any_family_and_protocol_are_verified() {
        let range = |transport| PortRange { transport, first: 7, last: 9 };
        let (tcp, udp) = (range(Transport::Tcp), range(Transport::Udp));
        let all = addresses();
        for addresses in [&all[..1], &all[2..], &all[..]] {
            let addresses = addresses.to_vec();
            let station = Claim::Station { mac: US, addresses: addresses.clone() };
            assert_chosen(&station, &frame(ALL, 0x0800, &[&[0; 40]]), false);
            for ports in [vec![tcp], vec![udp], vec![udp, tcp, tcp]] {
                let (has_tcp, has_v4) = (ports.contains(&tcp), addresses[0].is_ipv4());
                let claim = Claim::Ports { addresses: addresses.clone(), ports };
                let bytes = ipv4([10, 1, 0, 2], 6, 0, &to_port(8));
                assert_chosen(&claim, &bytes, has_tcp && has_v4);
            }
        }
    }
}
