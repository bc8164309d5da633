//! System calls that open, configure and close sockets: socket, bind, listen, accept, connect,
//! shutdown, close, fcntl, ioctl.

use std::net::{IpAddr, SocketAddr};

use towpath_stack::{
    BindError, BindOptions, ConnectError, Family, Linger, ListenError, SocketId, SocketInfo,
    SocketKind, SocketOption, SocketState,
};
use towpath_tcp::State;

use super::{
    CallCx, OpenFile, OpenFiles, Outcome, ScriptSocket, SocketStage, address, arg, arg_int, done,
    fail, with_outs,
};
use crate::knobs::IpVersion;
use crate::syntax::symbols as sys;
use crate::syntax::value::Value;

impl OpenFiles {
    pub(super) fn socket(&mut self, cx: &mut CallCx<'_>, args: &[Value], fd: i64) -> Outcome {
        let kind = arg_int(args, 1)?;
        let protocol = arg_int(args, 2)?;
        if kind & 0xf != sys::SOCK_STREAM || ![0, sys::IPPROTO_TCP].contains(&protocol) {
            return Err("only TCP sockets are supported".to_owned());
        }
        let family = if cx.knobs.version == IpVersion::V4 { Family::V4 } else { Family::V6 };
        let user = cx.world.host.add(SocketId(u64::MAX), cx.knobs.sizes);
        match cx.world.stack.open(SocketKind::Stream, family, user) {
            Ok(id) => cx.world.host.sockets[user as usize].id = id,
            Err(_) => return fail("ENOBUFS"),
        }
        let mut socket = ScriptSocket::new(user, SocketStage::Fresh, cx.knobs);
        socket.blocking = kind & sys::SOCK_NONBLOCK == 0;
        self.insert(fd, OpenFile::Socket(Box::new(socket)))
    }

    pub(super) fn insert(&mut self, fd: i64, descriptor: OpenFile) -> Outcome {
        if fd < 0 || self.table.contains_key(&fd) {
            return Err(format!("descriptor {fd} is in use or invalid"));
        }
        self.table.insert(fd, descriptor);
        done(fd)
    }

    pub(super) fn accept(&mut self, cx: &mut CallCx<'_>, args: &[Value], fd: i64) -> Outcome {
        let listener = arg_int(args, 0)?;
        let flags = args.get(3).and_then(Value::int).unwrap_or(0);
        let Some(OpenFile::Socket(socket)) = self.table.get_mut(&listener) else {
            return fail("EBADF");
        };
        if socket.stage != SocketStage::Listener {
            return fail("EINVAL");
        }
        let Some(child) = cx.world.host.sockets[socket.user as usize].children.pop_front() else {
            return socket.block_or(0, "EAGAIN");
        };
        let id = socket.id(cx.world);
        cx.world.stack.accepted(id);
        let mut accepted = ScriptSocket::new(child, SocketStage::Stream, cx.knobs);
        // Copy the options, because on Linux an accepted socket inherits the options of its
        // listener.
        accepted.options = socket.options.clone();
        accepted.told_connected = true;
        accepted.blocking = flags & sys::SOCK_NONBLOCK == 0;
        cx.world.settle();
        self.latest = Some(fd);
        self.insert(fd, OpenFile::Socket(Box::new(accepted)))
    }

    pub(super) fn close(&mut self, cx: &mut CallCx<'_>, args: &[Value]) -> Outcome {
        let fd = arg_int(args, 0)?;
        let Some(descriptor) = self.table.remove(&fd) else { return fail("EBADF") };
        for other in self.table.values_mut() {
            if let OpenFile::Epoll(set) = other {
                set.forget(fd);
            }
        }
        if let OpenFile::Socket(socket) = descriptor {
            socket.end(cx);
        }
        cx.world.settle();
        done(0)
    }
}

impl ScriptSocket {
    fn block_or(&self, flags: i64, errno: &'static str) -> Outcome {
        if super::sleeps(self, flags) { Ok(super::CallOutcome::Blocked) } else { fail(errno) }
    }

    fn end(&self, cx: &mut CallCx<'_>) {
        let children = std::mem::take(&mut cx.world.host.sockets[self.user as usize].children);
        for child in children {
            let id = cx.world.host.sockets[child as usize].id;
            cx.world.stack.close(cx.world.now, id, Linger::Abort);
        }
        let aborts = self.options.get(&(sys::SOL_SOCKET, sys::SO_LINGER)) == Some(&0);
        let linger = if aborts { Linger::Abort } else { Linger::Default };
        let (now, id) = (cx.world.now, self.id(cx.world));
        cx.world.stack.close(now, id, linger);
    }

    pub(super) fn bind(&mut self, cx: &mut CallCx<'_>, args: &[Value]) -> Outcome {
        let local = in_family(address(args.get(1), cx.local)?, cx.knobs.version);
        let set = |name| self.option(sys::SOL_SOCKET, name) != 0;
        let options = BindOptions {
            reuse_addr: set(sys::SO_REUSEADDR),
            reuse_port: set(sys::SO_REUSEPORT),
            free_bind: self.option(sys::SOL_IP, sys::IP_FREEBIND) != 0,
            v6_only: self.option(sys::SOL_IPV6, sys::IPV6_V6ONLY) != 0,
            ..BindOptions::default()
        };
        let id = self.id(cx.world);
        match cx.world.stack.bind(id, local, options) {
            Ok(_) => done(0),
            Err(BindError::AddrInUse) => fail("EADDRINUSE"),
            Err(BindError::AddrNotAvailable) => fail("EADDRNOTAVAIL"),
            Err(_) => fail("EINVAL"),
        }
    }

    pub(super) fn listen(&mut self, cx: &mut CallCx<'_>, args: &[Value]) -> Outcome {
        let backlog = u32::try_from(arg_int(args, 1)?).unwrap_or(u32::MAX);
        let id = self.id(cx.world);
        match cx.world.stack.listen(id, backlog) {
            Ok(()) => {
                self.stage = SocketStage::Listener;
                done(0)
            }
            Err(ListenError::AddrInUse) => fail("EADDRINUSE"),
            Err(_) => fail("EINVAL"),
        }
    }

    pub(super) fn connect(&mut self, cx: &mut CallCx<'_>, args: &[Value]) -> Outcome {
        let remote = in_family(address(args.get(1), cx.remote)?, cx.knobs.version);
        if self.stage == SocketStage::Listener {
            return fail("EISCONN");
        }
        if self.stage == SocketStage::Fresh {
            // Check bit 1 of `tcp_fastopen`, which enables Fast Open for clients.
            let is_fast = self.option(sys::SOL_TCP, sys::TCP_FASTOPEN_CONNECT) != 0
                && cx.knobs.fast_open & 1 != 0;
            return match self.open_connection(cx, remote, is_fast) {
                Err(errno) => fail(errno),
                Ok(true) => {
                    self.defers_connect = true;
                    self.told_connected = true;
                    done(0)
                }
                Ok(false) => {
                    cx.world.settle();
                    self.block_or(0, "EINPROGRESS")
                }
            };
        }
        if let Some(errno) = self.take_error(cx.world) {
            return fail(errno);
        }
        match self.status(cx.world) {
            status if status.failed => fail("ECONNABORTED"),
            status if status.connected && self.told_connected => fail("EISCONN"),
            status if status.connected => {
                self.told_connected = true;
                done(0)
            }
            _ => self.block_or(0, "EALREADY"),
        }
    }

    /// Starts the handshake of a connection. Returns whether the SYN waits for the first bytes.
    pub(super) fn open_connection(
        &mut self,
        cx: &mut CallCx<'_>,
        remote: SocketAddr,
        is_fast: bool,
    ) -> Result<bool, &'static str> {
        let (recv, send) = self.sizes.create();
        let (now, id) = (cx.world.now, self.id(cx.world));
        let stack = &mut cx.world.stack;
        let opened = match is_fast {
            true => stack.connect_fast_open(now, id, remote, recv, send),
            false => stack.connect(now, id, remote, recv, send).map(|()| false),
        };
        let waits = opened.map_err(|error| match error {
            ConnectError::NoPort => "EADDRNOTAVAIL",
            ConnectError::AddrInUse => "EADDRINUSE",
            ConnectError::NetUnreachable => "ENETUNREACH",
            ConnectError::Connected => "EISCONN",
            ConnectError::Refused => "ECONNREFUSED",
            ConnectError::OtherFamily => "EAFNOSUPPORT",
            ConnectError::Forbidden => "EACCES",
            ConnectError::TooMany => "ENOBUFS",
            _ => "EINVAL",
        })?;
        self.stage = SocketStage::Stream;
        self.apply_to_connection(cx);
        Ok(waits)
    }

    pub(super) fn shutdown(&mut self, cx: &mut CallCx<'_>, args: &[Value]) -> Outcome {
        let how = arg_int(args, 1)?;
        let info = self.info(cx);
        let state = info.map(|info| info.state);
        let is_open = self.stage == SocketStage::Stream
            && !matches!(state, None | Some(SocketState::Tcp(State::Closed)));
        if !is_open {
            return fail("ENOTCONN");
        }
        let id = self.id(cx.world);
        match how {
            sys::SHUT_RD => self.shut_read = true,
            sys::SHUT_WR | sys::SHUT_RDWR => {
                self.shut_read |= how == sys::SHUT_RDWR;
                self.shut_write = true;
                cx.world.stack.shutdown_send(id);
            }
            _ => return fail("EINVAL"),
        }
        done(0)
    }

    pub(super) fn info(&self, cx: &CallCx<'_>) -> Option<SocketInfo> {
        cx.world.stack.info(cx.world.now, self.id(cx.world))
    }

    pub(super) fn fcntl(&mut self, args: &[Value]) -> Outcome {
        match arg_int(args, 1)? {
            sys::F_GETFL => done(sys::O_RDWR | if self.blocking { 0 } else { sys::O_NONBLOCK }),
            sys::F_SETFL => {
                self.blocking = arg_int(args, 2)? & sys::O_NONBLOCK == 0;
                done(0)
            }
            command => Err(format!("fcntl command {command} is not supported")),
        }
    }

    pub(super) fn ioctl(&mut self, cx: &mut CallCx<'_>, args: &[Value]) -> Outcome {
        let request = arg_int(args, 1)?;
        arg(args, 2)?;
        if self.stage == SocketStage::Listener {
            return fail("EINVAL");
        }
        let value = match request {
            sys::SIOCINQ => i64::from(self.unread(cx.world)),
            sys::SIOCOUTQ => i64::from(self.unacknowledged(cx.world)),
            sys::SIOCOUTQNSD => {
                let tcp = self.info(cx).and_then(|info| info.tcp);
                tcp.map_or(0, |tcp| i64::from(tcp.notsent_bytes))
            }
            _ => return Err(format!("ioctl request {request:#x} is not supported")),
        };
        with_outs(0, vec![(2, Value::Int(value))])
    }

    /// Applies the socket options that need a connection.
    fn apply_to_connection(&self, cx: &mut CallCx<'_>) {
        let id = self.id(cx.world);
        if self.option(sys::SOL_TCP, sys::TCP_CORK) != 0 {
            // Ignore the result: a new connection always accepts this option.
            let _ = cx.world.stack.set_option(id, SocketOption::Cork(true));
        }
    }
}

/// Converts an address to the address family of the script's sockets.
fn in_family(address: SocketAddr, version: IpVersion) -> SocketAddr {
    match (version, address.ip()) {
        (IpVersion::V4Mapped, IpAddr::V4(ip)) => {
            SocketAddr::new(ip.to_ipv6_mapped().into(), address.port())
        }
        _ => address,
    }
}
