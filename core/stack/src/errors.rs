//! ICMP errors about packets of ours: whom they concern, and whether they are to be believed.

use std::net::SocketAddr;

use towpath_tcp::Instant;
use towpath_wire::IpProtocol;

use crate::drop::DropReason;
use crate::flow::{Flow, FlowRef};
use crate::host::{DatagramError, Host, Message, SocketError, SocketEvent};
use crate::net::{IcmpError, IcmpErrorKind, Unreachable};
use crate::socket::{Kind, Unreached};
use crate::stack::Stack;

impl<H: Host> Stack<H> {
    /// Somebody could not deliver a packet of ours.
    pub(crate) fn receive_error(&mut self, now: Instant, error: &IcmpError) {
        let flow = Flow {
            local: error.src,
            remote: error.dst,
            local_port: error.src_port,
            remote_port: error.dst_port,
        };
        let hash = self.keys.table.flow(&flow);
        let believed = match IpProtocol(error.protocol) {
            //= https://www.rfc-editor.org/rfc/rfc9293#section-3.9.2.2
            //# TCP implementations MUST act on an ICMP error message passed up from the IP layer,
            //# directing it to the connection that created the error (MUST-54).
            IpProtocol::TCP => match self.find_flow(hash, &flow) {
                Some(FlowRef::Socket(index)) => self.on_tcp_error(now, index, error),
                _ => false,
            },
            IpProtocol::UDP => self.find_datagram_error(now, hash, &flow, error, false),
            IpProtocol::ICMP | IpProtocol::ICMPV6 => {
                self.find_datagram_error(now, hash, &flow, error, true)
            }
            _ => false,
        };
        if !believed {
            self.count_drop(DropReason::IcmpErrorStray);
        }
    }

    /// Whose datagram or echo request it is: a socket with that peer, or one that is bound there.
    fn find_datagram_error(
        &mut self,
        now: Instant,
        hash: u64,
        flow: &Flow,
        error: &IcmpError,
        echo: bool,
    ) -> bool {
        if let Some(index) = self.find_peer(hash, flow, echo) {
            return self.on_datagram_error(now, index, error, true);
        }
        let binds = if echo { &self.echo_binds } else { &self.udp_binds };
        let bound = binds.all_receivers(flow.local, flow.local_port).next();
        bound.is_some_and(|index| self.on_datagram_error(now, index, error, false))
    }

    fn on_tcp_error(&mut self, now: Instant, index: u32, error: &IcmpError) -> bool {
        let Some(Kind::Stream(stream)) = self.sockets.get_mut(index).map(|socket| &mut socket.kind)
        else {
            return false;
        };
        let buffers = stream.buffers();
        let (Some(connection), Some(seq)) = (&mut stream.connection, error.tcp_seq) else {
            return false;
        };
        //= https://www.rfc-editor.org/rfc/rfc5927#section-4.1
        //# TCP SHOULD check that the TCP sequence number contained in the payload of the ICMP error
        //# message is within the range SND.UNA =< SEG.SEQ < SND.NXT.
        let info = connection.info(now, buffers);
        if !seq.is_within(info.snd_una, info.snd_nxt - info.snd_una) {
            return false;
        }
        match error.kind {
            IcmpErrorKind::TooBig { .. } => self.learn_path_mtu(now, error),
            kind => {
                // A connect fails at once whatever the reason, as on Linux and as RFC 5461 §4.1 describes: who
                // waits for it wants to know. Established connections take all of these for transient.
                stream.unreachable = Some(reason_of(kind));
                connection.on_unreachable(true, seq);
            }
        }
        self.mark_dirty(index);
        true
    }

    fn on_datagram_error(
        &mut self,
        now: Instant,
        index: u32,
        error: &IcmpError,
        connected: bool,
    ) -> bool {
        let Some(socket) = self.sockets.get(index) else { return false };
        let Kind::Datagram(datagram) = &socket.kind else { return false };
        let (user, all) = (socket.user, datagram.hears_errors_of(error.dst));
        let told = match error.kind {
            IcmpErrorKind::TooBig { mtu } => {
                self.learn_path_mtu(now, error);
                SocketError::MessageTooBig(mtu)
            }
            IcmpErrorKind::Unreachable(Unreachable::Port | Unreachable::Protocol) => {
                SocketError::PortUnreachable
            }
            kind @ IcmpErrorKind::Unreachable(_) => reason_of(kind).into(),
            // RFC 1122 §3.2.2.4: transient, unless the program wants to know all.
            kind if all => reason_of(kind).into(),
            _ => return true,
        };
        if all {
            let remote = SocketAddr::new(error.dst, error.dst_port);
            let (kind, code) = error.message;
            let message = Some(Message { kind, code, from: error.from });
            let payload = error.payload.clone();
            let report = DatagramError { reason: told, message, remote, payload };
            self.reports.push_back((user, report));
            return true;
        }
        // As on Linux, who sends to many does not hear what became of one of them.
        if !connected {
            return true;
        }
        self.untold.push_back((user, SocketEvent::Error(told)));
        true
    }

    fn learn_path_mtu(&mut self, now: Instant, error: &IcmpError) {
        if let IcmpErrorKind::TooBig { mtu } = error.kind {
            self.net.set_path_mtu(now, error.dst, mtu);
        }
    }
}

/// What an ICMP error means for a program.
fn reason_of(kind: IcmpErrorKind) -> Unreached {
    match kind {
        IcmpErrorKind::Unreachable(Unreachable::Port | Unreachable::Protocol) => Unreached::Refused,
        IcmpErrorKind::Unreachable(Unreachable::Net) => Unreached::Net,
        _ => Unreached::Host,
    }
}
