//! Handles requests of programs about sockets and the network that a shard answers itself.

use std::net::SocketAddr;

use towpath_shm::control::{ControlReply, DATA_MAX, Request, SOCKETS_MAX, call};
use towpath_shm::layout::{Command, Plain, RawAddr};

use crate::config::ResolverConfig;
use crate::errno::{EBADF, EOPNOTSUPP, Errno};
use crate::ids::ChannelId;
use crate::shard::requests::rounds::Answer;
use crate::shard::requests::{RequestCx, Requests};

/// Length in bytes of a pair of slot number and generation.
const PAIR: usize = 8;

impl Requests {
    /// Handles a request of a process. An unknown request fails with EOPNOTSUPP, and one about a
    /// socket that the process does not have fails with EBADF.
    pub(crate) fn handle(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: ChannelId,
        request: &Request,
    ) -> Answer {
        match request.call {
            call::RESOLVER => return Ok(resolver(cx.processes.resolver)),
            call::NAMES => return Ok(self.names(request.a)),
            call::SOCKETS => return Ok(self.list_sockets(cx, request.a)),
            call::SOCKET_ROWS => return Ok(self.socket_rows(cx, request)),
            call::SOCKET_FIGURES => return cx.view().socket_figures(request.a),
            call::TALLY => return Ok(cx.view().tally(self.next_shard)),
            call::NEIGHBORS => return Ok(cx.net.neighbors(&mut cx.sockets.counters, request.a)),
            call::COMMAND => {
                self.command(cx, id, &Command::from_bytes(request.payload()));
                return Ok(ControlReply::default());
            }
            call::SOCKET => return self.open_sockets(cx, id, request),
            call::INTERFACES => return Ok(cx.net.interfaces()),
            call::ROUTES => return Ok(cx.net.routes(request.a)),
            _ => {}
        }
        let slot = self.named(cx, id, request)?;
        match request.call {
            call::BIND => cx.sockets.bind(cx.net, slot, &request.addr),
            call::LISTEN => cx.sockets.listen(cx.net, slot, request.a),
            call::CONNECT => {
                cx.sockets.connect(cx.net, &mut cx.processes.channels, cx.peers, slot, request)
            }
            call::ADOPT => {
                cx.processes.adopt(cx.sockets, cx.net, id, slot);
                Ok(ControlReply::default())
            }
            call::GET_OPTION => cx.sockets.options(cx.net, slot).get_option(request),
            call::ERROR_QUEUE => cx.sockets.take_report(cx.net, slot),
            call::CHECK_LENGTH => cx.sockets.check_length(cx.net, slot, request),
            call::SET_OPTION => {
                cx.sockets.options(cx.net, slot).set_fallible(request)?;
                Ok(ControlReply::default())
            }
            _ => Err(Errno(EOPNOTSUPP)),
        }
    }

    /// Returns the slot of the socket that a request names. Fails if the process does not have the
    /// socket open, except for ADOPT.
    fn named(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: ChannelId,
        request: &Request,
    ) -> Result<u32, Errno> {
        cx.sockets.slots.find(request.slot, request.generation).ok_or(Errno(EBADF))?;
        if request.call != call::ADOPT && !cx.processes.is_held(id, request.slot) {
            return Err(Errno(EBADF));
        }
        Ok(request.slot)
    }

    /// Opens a socket, and more in advance if the request allows it. Opens only one if the process
    /// has child processes that have not begun, or if few slots are free.
    fn open_sockets(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: ChannelId,
        request: &Request,
    ) -> Result<ControlReply, Errno> {
        let (family, protocol) = (request.a, request.b);
        let (slot, generation) = self.open(cx, id, family, protocol)?;
        let mut reply = ControlReply { slot, generation, ..ControlReply::default() };
        let has_clones =
            cx.processes.channels.get(id).is_some_and(|it| !it.lineage.clones.is_empty());
        let further = match has_clones || cx.sockets.slots.is_almost_full() {
            true => 0,
            false => SOCKETS_MAX.min(request.slot as usize).saturating_sub(1),
        };
        for pair in reply.data.chunks_exact_mut(PAIR).take(further) {
            let Ok((slot, generation)) = self.open(cx, id, family, protocol) else { break };
            cx.sockets.counters.work(1);
            pair[..4].copy_from_slice(&slot.to_ne_bytes());
            pair[4..].copy_from_slice(&generation.to_ne_bytes());
            reply.len += PAIR as u32;
        }
        Ok(reply)
    }

    fn open(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: ChannelId,
        family: u32,
        protocol: u32,
    ) -> Result<(u32, u32), Errno> {
        let (slot, generation) = cx.sockets.open(cx.net, family, protocol)?;
        cx.processes.hold(cx.sockets, id, slot);
        Ok((slot, generation))
    }

    /// Returns a part of the text with the run's host names: as much as fits a reply, from byte
    /// `from` on.
    fn names(&self, from: u32) -> ControlReply {
        let rest = self.names.as_bytes().get(from as usize..).unwrap_or_default();
        let told = &rest[..rest.len().min(DATA_MAX)];
        let mut reply = ControlReply::default();
        reply.data[..told.len()].copy_from_slice(told);
        reply.len = told.len() as u32;
        reply.a = if told.len() < rest.len() { from + told.len() as u32 } else { 0 };
        reply
    }
}

fn resolver(config: Option<ResolverConfig>) -> ControlReply {
    config.map_or_else(ControlReply::default, |resolver| ControlReply {
        a: resolver.only_loopback.into(),
        addr: RawAddr::new(SocketAddr::new(resolver.address, 0)),
        ..ControlReply::default()
    })
}
