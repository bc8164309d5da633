//! Handles ICMP errors about packets that we sent: finds the socket, validates the quoted packet,
//! and applies the error.

use std::net::{IpAddr, SocketAddr};

use towpath_tcp::Instant;
use towpath_wire::IpProtocol;

use crate::cx::Cx;
use crate::drop::DropReason;
use crate::host::{DatagramError, Host, Message, SocketError, SocketEvent, SocketId};
use crate::net::IcmpError;
use crate::net::limits::PATH_MTU_TIME;
use crate::net::mtu::PathMtu;
use crate::socket::SocketRole;
use crate::stack::Stack;
use crate::tables::flow::{Flow, FlowRef};
use crate::tcp::path::LearntMtu;
use crate::udp::delivery::DatagramTaker;
use crate::unreached::Meaning;

impl<H: Host> Stack<H> {
    /// Handles an ICMP error that quotes a packet that we sent.
    pub(crate) fn receive_error(&mut self, cx: &mut Cx<'_, H>, error: &IcmpError) {
        let flow = Flow {
            local: error.src,
            remote: error.dst,
            local_port: error.src_port,
            remote_port: error.dst_port,
        };
        let hash = self.keys.table.ends(&flow);
        let believed = match IpProtocol(error.protocol) {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.2
            //# TCP implementations MUST act on an ICMP error message passed up from the IP layer,
            //# directing it to the connection that created the error (MUST-54).
            IpProtocol::TCP => match self.find_flow(hash, &flow) {
                Some(FlowRef::Socket(index)) => self.on_tcp_error(cx.now, index, error),
                _ => false,
            },
            IpProtocol::UDP => {
                self.find_datagram_error(cx.now, hash, &flow, error, false)
                    || self.on_stray_error(cx, error)
            }
            IpProtocol::ICMP | IpProtocol::ICMPV6 => {
                self.find_datagram_error(cx.now, hash, &flow, error, true)
            }
            _ => false,
        };
        if !believed {
            self.count_drop(DropReason::IcmpErrorStray);
        }
    }

    /// Handles an ICMP error about a datagram that the owner of the stack sent from an address that
    /// is not the host's own. Returns false if the owner did not send such a datagram.
    fn on_stray_error(&mut self, cx: &mut Cx<'_, H>, error: &IcmpError) -> bool {
        let known = cx.host.stray_error(error);
        if let Some(mtu) = error.too_big.filter(|_| known) {
            // Record the path MTU from the error, so that the stack fragments later datagrams to
            // this destination.
            self.net.set_path_mtu(cx.now, (error.src, error.dst), None, mtu);
        }
        known
    }

    /// Reports an ICMP error to the socket that sent the quoted datagram or echo request. The
    /// lookup is that of a received datagram, with source and destination swapped.
    fn find_datagram_error(
        &mut self,
        now: Instant,
        hash: u64,
        flow: &Flow,
        error: &IcmpError,
        echo: bool,
    ) -> bool {
        // As on Linux, an ICMP error to one of our own addresses arrives on the loopback interface.
        // An ICMPv6 error arrives on the interface with that address.
        let iface = match flow.local {
            IpAddr::V4(_) => error.iface,
            IpAddr::V6(_) => self.net.link_of(error.iface, flow.local),
        };
        self.datagram_taker(hash, flow, iface, echo)
            .is_some_and(|taker| self.on_datagram_error(now, taker, error))
    }

    fn on_tcp_error(&mut self, now: Instant, index: u32, error: &IcmpError) -> bool {
        let Some(stream) = self.sockets.stream_mut(index) else {
            return false;
        };
        let (Some(connection), Some(seq)) = (&mut stream.connection, error.tcp_seq) else {
            return false;
        };
        //= https://www.rfc-editor.org/rfc/rfc5927#section-4.1
        //# TCP SHOULD check that the TCP sequence number contained in the payload of the ICMP error
        //# message is within the range SND.UNA =< SEG.SEQ < SND.NXT.
        if !connection.is_outstanding(seq) {
            return false;
        }
        match error.too_big {
            Some(mtu) => self.lower_path_mtu(now, index, PathMtu::reported(mtu)),
            None => {
                // As on Linux and in RFC 5461 §4.1, any of these errors makes a connect fail at
                // once, because the program waits for it. Established connections ignore the
                // errors, which may be transient.
                let Some(meaning) = Meaning::of(error) else { return true };
                stream.unreachable = Some(meaning.why);
                connection.on_unreachable(true, seq);
            }
        }
        self.mark_dirty(index);
        true
    }

    /// Lowers the path MTU of a connection, because one of its segments was too long for a link on
    /// the path.
    fn lower_path_mtu(&mut self, now: Instant, index: u32, mtu: PathMtu) {
        let id = SocketId(self.sockets.id(index));
        let Some(stream) = self.sockets.stream_mut(index) else {
            return;
        };
        if !stream.path.as_mut().is_some_and(|path| path.lower(mtu)) {
            return;
        }
        stream.on_path_mtu();
        let learnt = LearntMtu { id, mtu, until: now + PATH_MTU_TIME };
        if let Some(oldest) = self.paths.learn(learnt) {
            self.counters.path_mtus_full += 1;
            self.forget_mtu(oldest);
        }
    }

    /// Removes expired path MTUs, so that connections use the MTU of their link again for the next
    /// segment. Called in each turn of the event loop, so expiry needs no timer.
    pub(crate) fn forget_old_mtus(&mut self, now: Instant) {
        while let Some(learnt) = self.paths.pop_old(now) {
            self.forget_mtu(learnt);
        }
    }

    fn forget_mtu(&mut self, learnt: LearntMtu) {
        let LearntMtu { id, mtu, .. } = learnt;
        let stream = self.index(id).and_then(|index| self.sockets.stream_mut(index));
        let Some(stream) = stream else { return };
        if stream.path.as_mut().is_some_and(|path| path.forget(mtu)) {
            stream.on_path_mtu();
        }
    }

    fn on_datagram_error(&mut self, now: Instant, taker: DatagramTaker, error: &IcmpError) -> bool {
        let Some(socket) = self.sockets.get(taker.socket) else { return false };
        let SocketRole::Datagram(datagram) = &socket.kind else { return false };
        if datagram.shadow_of.is_some() {
            return false;
        }
        let (user, all) = (socket.user, datagram.hears_errors_of(error.dst));
        let (reason, hard) = match error.too_big {
            Some(mtu) => {
                let discovery = datagram.lengths.discovery(error.dst);
                let way = datagram.way_to(error.dst);
                if discovery.believes_reports() {
                    self.net.set_path_mtu(now, (error.src, error.dst), way, mtu);
                }
                if !discovery.tells_reports(error.dst) {
                    return true;
                }
                (SocketError::MessageTooBig(mtu), true)
            }
            None => {
                let Some(Meaning { why, hard }) = Meaning::of(error) else { return true };
                (why.into(), hard)
            }
        };
        if all {
            let remote = SocketAddr::new(error.dst, error.dst_port);
            let (kind, code) = error.message;
            let message = Some(Message { kind, code, from: error.from, iface: error.iface });
            let payload = error.payload.clone();
            let report = DatagramError { reason, message, remote, payload };
            self.events.report(user, report);
            return true;
        }
        // As on Linux, unconnected sockets get ICMP errors only with IP_RECVERR. Transient errors
        // (RFC 1122 §3.2.2.1) also require it.
        if taker.connected && hard {
            self.events.push(user, SocketEvent::Error(reason));
        }
        true
    }
}
