//! System calls on the sockets of a script, with the results that Linux returns.

mod epoll;
mod open;
mod options;
mod queues;
mod transfer;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use towpath_ring::{HeapSend, RecvBuffer, SendBuffer};
use towpath_stack::{Instant, SocketError, SocketId, SocketInfo};

use crate::host::{SocketSizes, SocketStatus};
use crate::knobs::Knobs;
use crate::syntax::CallSpec;
use crate::syntax::symbols as sys;
use crate::syntax::value::Value;
use crate::world::ScriptWorld;
use epoll::ScriptEpoll;
use queues::ZeroCopies;

/// Return value of a system call, and the arguments that it has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallResult {
    pub value: i64,
    pub errno: Option<&'static str>,
    /// Arguments that the call has written, with their index.
    pub outs: Vec<(usize, Value)>,
}

/// Outcome of one attempt to perform a system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    Done(CallResult),
    /// The call blocks, and is attempted again after events, with the same [`CallProgress`].
    Blocked,
}

/// State of a call that blocks, kept between its attempts.
#[derive(Debug, Default)]
pub struct CallProgress {
    /// Whether the call has blocked.
    pub slept: bool,
    /// Number of bytes written so far.
    pub written: usize,
    /// Time at which the timeout of the call expires. `None` if it has no timeout.
    pub deadline: Option<Instant>,
}

/// Reason why the interpreter does not support a call.
pub type Unsupported = String;

type Outcome = Result<CallOutcome, Unsupported>;

fn done(value: i64) -> Outcome {
    with_outs(value, Vec::new())
}

fn with_outs(value: i64, outs: Vec<(usize, Value)>) -> Outcome {
    Ok(CallOutcome::Done(CallResult { value, errno: None, outs }))
}

fn fail(errno: &'static str) -> Outcome {
    Ok(CallOutcome::Done(CallResult { value: -1, errno: Some(errno), outs: Vec::new() }))
}

/// Context that is passed to each system call.
pub struct CallCx<'a> {
    pub world: &'a mut ScriptWorld,
    pub knobs: &'a Knobs,
    pub progress: &'a mut CallProgress,
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

/// Role of a socket, which depends on the calls so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketStage {
    Fresh,
    Listener,
    /// Socket with a connection, or with a connection that has failed.
    Stream,
}

/// Socket of a script.
#[derive(Debug)]
struct ScriptSocket {
    user: u32,
    stage: SocketStage,
    blocking: bool,
    /// Whether connect(2) has reported success to the script.
    told_connected: bool,
    shut_read: bool,
    shut_write: bool,
    /// Values set by setsockopt(2), by level and name of the option.
    options: BTreeMap<(i64, i64), i64>,
    sizes: SocketSizes,
    /// Total number of bytes written to the socket.
    written: u64,
    zero_copies: ZeroCopies,
    /// Whether TCP_FASTOPEN_CONNECT was set, and connect(2) therefore waits for the first bytes.
    defers_connect: bool,
}

#[derive(Debug)]
enum OpenFile {
    Socket(Box<ScriptSocket>),
    Epoll(ScriptEpoll),
}

/// Open descriptors of a script.
#[derive(Debug, Default)]
pub struct OpenFiles {
    table: BTreeMap<i64, OpenFile>,
    /// Descriptor of the most recent connection, whose TCP_INFO is visible to assertions.
    latest: Option<i64>,
}

impl OpenFiles {
    /// Performs a system call, or repeats one that has blocked.
    ///
    /// # Errors
    /// Returns a message if the call or one of its arguments is not supported.
    pub fn call(&mut self, cx: &mut CallCx<'_>, call: &CallSpec) -> Outcome {
        let args = call.args.as_slice();
        let wanted = call.result.int().unwrap_or(-1);
        match call.name.as_str() {
            "socket" => return self.socket(cx, args, wanted),
            "epoll_create" | "epoll_create1" => return self.epoll_create(wanted),
            "epoll_ctl" => return self.epoll_ctl(cx, args),
            "epoll_wait" => return self.epoll_wait(cx, args),
            "poll" => return self.poll(cx, args),
            "close" => return self.close(cx, args),
            "accept" | "accept4" => return self.accept(cx, args, wanted),
            _ => {}
        }
        let fd = arg_int(args, 0)?;
        let Some(OpenFile::Socket(socket)) = self.table.get_mut(&fd) else {
            return fail("EBADF");
        };
        let outcome = match call.name.as_str() {
            "bind" => socket.bind(cx, args),
            "listen" => socket.listen(cx, args),
            "connect" => socket.connect(cx, args),
            "shutdown" => socket.shutdown(cx, args),
            "fcntl" => socket.fcntl(args),
            "ioctl" => socket.ioctl(cx, args),
            "setsockopt" => socket.setsockopt(cx, args),
            "getsockopt" => socket.getsockopt(cx, args),
            "read" | "readv" | "recv" | "recvfrom" | "recvmsg" => {
                socket.receive(cx, &call.name, args)
            }
            "write" | "writev" | "send" | "sendto" | "sendmsg" => socket.send(cx, &call.name, args),
            name => Err(format!("system call {name} is not supported")),
        };
        if socket.stage == SocketStage::Stream {
            self.latest = Some(fd);
        }
        cx.world.settle();
        outcome
    }

    /// Returns the state of the most recent connection. `None` if there is none.
    pub fn info(&self, world: &ScriptWorld) -> Option<SocketInfo> {
        let Some(OpenFile::Socket(socket)) = self.table.get(&self.latest?) else { return None };
        world.stack.info(world.now, socket.id(world))
    }

    /// Returns whether all sockets except listeners are closed.
    pub fn has_no_connection(&self) -> bool {
        !self.table.values().any(|descriptor| match descriptor {
            OpenFile::Socket(socket) => socket.stage == SocketStage::Stream,
            OpenFile::Epoll(_) => false,
        })
    }
}

impl ScriptSocket {
    fn new(user: u32, stage: SocketStage, knobs: &Knobs) -> Self {
        Self {
            user,
            stage,
            blocking: true,
            told_connected: false,
            shut_read: false,
            shut_write: false,
            options: BTreeMap::new(),
            sizes: knobs.sizes,
            written: 0,
            zero_copies: ZeroCopies::default(),
            defers_connect: false,
        }
    }

    fn status<'a>(&self, world: &'a ScriptWorld) -> &'a SocketStatus {
        &world.host.sockets[self.user as usize]
    }

    fn id(&self, world: &ScriptWorld) -> SocketId {
        self.status(world).id
    }

    fn option(&self, level: i64, name: i64) -> i64 {
        self.options.get(&(level, name)).copied().unwrap_or(0)
    }

    fn unread(&self, world: &mut ScriptWorld) -> u32 {
        let id = self.id(world);
        world.stack.recv_buffer(id).map_or(0, |buffer| buffer.unread())
    }

    fn send_buffer<'a>(&self, world: &'a mut ScriptWorld) -> Option<&'a mut HeapSend> {
        let id = self.id(world);
        world.stack.send_buffer(id)
    }

    /// Returns the number of bytes that the peer has not acknowledged yet.
    fn unacknowledged(&self, world: &mut ScriptWorld) -> u32 {
        self.send_buffer(world).map_or(0, |buffer| buffer.len())
    }

    /// Takes the pending error of the socket, as the option SO_ERROR does. `None` if there is no
    /// error.
    fn take_error(&self, world: &mut ScriptWorld) -> Option<&'static str> {
        let status = &mut world.host.sockets[self.user as usize];
        // A reset in CLOSE-WAIT is reported as EPIPE, as in Linux's `tcp_reset`.
        let ended = status.ended && !self.shut_write;
        status.error.take().map(|error| match error {
            SocketError::Reset if ended => "EPIPE",
            error => name_of(error),
        })
    }
}

/// Returns the name of the errno for a connection's error.
fn name_of(error: SocketError) -> &'static str {
    match error {
        SocketError::Reset => "ECONNRESET",
        SocketError::Refused | SocketError::PortUnreachable => "ECONNREFUSED",
        SocketError::TimedOut => "ETIMEDOUT",
        SocketError::HostUnreachable | SocketError::Prohibited => "EHOSTUNREACH",
        SocketError::NetUnreachable => "ENETUNREACH",
        SocketError::ProtocolUnreachable => "ENOPROTOOPT",
        SocketError::SourceRouteFailed => "EOPNOTSUPP",
        SocketError::HostUnknown => "EHOSTDOWN",
        SocketError::HostIsolated => "ENONET",
        SocketError::BadHeader => "EPROTO",
        SocketError::MessageTooBig(_) => "EMSGSIZE",
        SocketError::AddrNotAvailable => "EADDRNOTAVAIL",
        _ => "ECONNABORTED",
    }
}

fn arg(args: &[Value], at: usize) -> Result<&Value, Unsupported> {
    args.get(at).ok_or_else(|| format!("argument {} is missing", at + 1))
}

fn arg_int(args: &[Value], at: usize) -> Result<i64, Unsupported> {
    let value = arg(args, at)?;
    value.int().ok_or_else(|| format!("argument {} is {value}, not a number", at + 1))
}

/// Converts an argument to a socket address. Returns `default` if the argument is `...`.
fn address(value: Option<&Value>, default: SocketAddr) -> Result<SocketAddr, Unsupported> {
    let Some(value) = value.filter(|value| **value != Value::Any) else { return Ok(default) };
    let port = value.field("sin_port").or(value.field("sin6_port")).and_then(Value::int);
    let ip = match value.field("sin_addr").or(value.field("sin6_addr")) {
        Some(Value::Text(text)) => text.parse::<IpAddr>().ok(),
        _ => None,
    };
    match (port.map(u16::try_from), ip) {
        (Some(Ok(port)), Some(ip)) => Ok(SocketAddr::new(ip, port)),
        _ => Err(format!("{value} is not a socket address")),
    }
}

fn as_bool(value: bool) -> i64 {
    i64::from(value)
}

/// Returns whether a call with these flags may block on the socket.
fn sleeps(socket: &ScriptSocket, flags: i64) -> bool {
    socket.blocking && flags & sys::MSG_DONTWAIT == 0
}
