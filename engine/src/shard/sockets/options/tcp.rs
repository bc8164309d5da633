//! Options of level SOL_TCP that the stack answers or may reject.

use towpath_ring::RecvBuffer;
use towpath_shm::control::{ControlReply, Request};
use towpath_stack::{SocketId, SocketInfo, SocketOption};
use towpath_tcp::{CongestionKind, FastOpenKeys};

use crate::errno::{EINVAL, ENOENT, ENOPROTOOPT, EOPNOTSUPP, Errno};
use crate::shard::sockets::connecting::BACKLOG_MAX;
use crate::shard::sockets::options::SocketOptions;
use crate::shard::sockets::options::value::{int, put};
use crate::shard::sockets::tcp_info::congestion_info;

const TCP_MAXSEG: u32 = 2;
const TCP_WINDOW_CLAMP: u32 = 10;
const TCP_INFO: u32 = 11;
const TCP_QUICKACK: u32 = 12;
const TCP_CONGESTION: u32 = 13;
const TCP_FASTOPEN: u32 = 23;
const TCP_CC_INFO: u32 = 26;
const TCP_SAVE_SYN: u32 = 27;
const TCP_SAVED_SYN: u32 = 28;
const TCP_FASTOPEN_CONNECT: u32 = 30;
const TCP_FASTOPEN_KEY: u32 = 33;

impl SocketOptions<'_> {
    /// Returns an option's value for getsockopt(2). `info` is the state of socket `id`.
    pub(crate) fn get_tcp_option(
        &mut self,

        id: Option<SocketId>,
        info: Option<&SocketInfo>,
        request: &Request,
    ) -> Result<ControlReply, Errno> {
        let mut reply = ControlReply::default();
        match request.b {
            TCP_INFO => put(&mut reply, &self.sockets.tcp_info(self.slot, info)),
            TCP_CONGESTION => {
                let set =
                    self.sockets.slots.get(self.slot).and_then(|entry| entry.rare().congestion);
                let configured = set.unwrap_or(self.net.stack.config().tcp.congestion);
                let kind = info.and_then(|info| info.tcp).map_or(configured, |tcp| tcp.congestion);
                // Return a name padded to TCP_CA_NAME_MAX bytes, as Linux does.
                let mut name = [0; 16];
                let text = kind.name().as_bytes();
                name[..text.len()].copy_from_slice(text);
                put(&mut reply, &name);
            }
            TCP_CC_INFO => {
                let values = info.and_then(|info| info.tcp).map(|tcp| tcp.congestion_info);
                put(&mut reply, &congestion_info(values.unwrap_or_default()));
            }
            TCP_QUICKACK => {
                let quick = info.and_then(|info| info.tcp).is_none_or(|tcp| tcp.quick_acks);
                put(&mut reply, &u32::from(quick).to_ne_bytes());
            }
            TCP_WINDOW_CLAMP => put(&mut reply, &self.recv_capacity(id).to_ne_bytes()),
            TCP_FASTOPEN => {
                let places = self
                    .sockets
                    .slots
                    .get(self.slot)
                    .map_or(0, |entry| entry.rare().fast_open_queue);
                put(&mut reply, &places.to_ne_bytes());
            }
            TCP_FASTOPEN_KEY => {
                let keys = id.and_then(|id| self.net.stack.fast_open_keys(id));
                put(&mut reply, &keys.map_or(Vec::new(), FastOpenKeys::to_bytes));
            }
            TCP_SAVE_SYN => {
                let on =
                    self.sockets.slots.get(self.slot).is_some_and(|entry| entry.rare().save_syn);
                put(&mut reply, &i32::from(on).to_ne_bytes());
            }
            TCP_SAVED_SYN => {
                let room = usize::try_from(int(request.payload())?).unwrap_or(0);
                let saved = id.map_or(Ok(None), |id| self.net.stack.take_saved_syn(id, room));
                match saved {
                    Ok(syn) => put(&mut reply, syn.as_deref().unwrap_or_default()),
                    Err(len) => reply.a = len as u32,
                }
            }
            TCP_MAXSEG => {
                // Without a connection, return the default MSS, as Linux does.
                let mss = info.and_then(|info| info.tcp).map_or(536, |tcp| tcp.snd_mss);
                put(&mut reply, &mss.to_ne_bytes());
            }
            _ => return Err(Errno(ENOPROTOOPT)),
        }
        Ok(reply)
    }

    /// Returns the size of a connection's receive buffer in bytes. 0 if there is no connection.
    pub(crate) fn recv_capacity(&mut self, id: Option<SocketId>) -> u32 {
        let recv = id.and_then(|id| self.net.stack.recv_buffer(id));
        recv.map_or(0, |recv| RecvBuffer::capacity(recv))
    }

    /// Sets an option for setsockopt(2).
    pub(crate) fn set_tcp_option(&mut self, id: SocketId, request: &Request) -> Result<(), Errno> {
        let entry = self.sockets.slots.get_mut(self.slot).ok_or(Errno(EINVAL))?;
        let data = request.payload();
        match request.b {
            TCP_CONGESTION => {
                let kind = congestion(data)?;
                self.net.stack.set_option(id, SocketOption::Congestion(kind))?;
                entry.set_rare(|rare| rare.congestion = Some(kind));
                Ok(())
            }
            TCP_FASTOPEN => {
                let places = int(data)?;
                let places = u32::try_from(places).map_err(|_| Errno(EINVAL))?.min(BACKLOG_MAX);
                let set = self.net.stack.set_option(id, SocketOption::FastOpenQueue(places));
                // The stack fails for a connected socket. Return EINVAL, as Linux does.
                set.map_err(|_| Errno(EINVAL))?;
                entry.set_rare(|rare| rare.fast_open_queue = places);
                Ok(())
            }
            TCP_FASTOPEN_KEY => {
                let keys = FastOpenKeys::from_bytes(data).ok_or(Errno(EINVAL))?;
                entry.set_rare(|rare| rare.fast_open_keys = Some(keys));
                // Ignore errors: a connection accepts the option, but it has no effect.
                let _ = self.net.stack.set_option(id, SocketOption::FastOpenKeys(keys));
                Ok(())
            }
            // Only check whether TCP Fast Open is enabled, because the library in the program
            // stores the value.
            TCP_FASTOPEN_CONNECT if !self.net.stack.config().tcp.fast_open.client() => {
                Err(Errno(EOPNOTSUPP))
            }
            TCP_FASTOPEN_CONNECT => Ok(()),
            TCP_SAVE_SYN => {
                let on = match int(data)? {
                    0 => false,
                    1 => true,
                    _ => return Err(Errno(EINVAL)),
                };
                entry.set_rare(|rare| rare.save_syn = on);
                // Ignore an error. Linux accepts TCP_SAVE_SYN on an established connection, where
                // the option has no effect.
                let _ = self.net.stack.set_option(id, SocketOption::SaveSyn(on));
                Ok(())
            }
            TCP_MAXSEG => {
                let mss = u16::try_from(int(data)?).map_err(|_| Errno(EINVAL))?;
                Ok(self.net.stack.set_option(id, SocketOption::MaxSegment(mss))?)
            }
            _ => Err(Errno(ENOPROTOOPT)),
        }
    }
}

fn congestion(name: &[u8]) -> Result<CongestionKind, Errno> {
    if name.is_empty() {
        return Err(Errno(EINVAL));
    }
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let name = std::str::from_utf8(&name[..end]).ok();
    name.and_then(CongestionKind::from_name).ok_or(Errno(ENOENT))
}
