//! System calls that send or receive data.

use towpath_pool::Fragments;
use towpath_ring::{Payload, SendBuffer};
use towpath_stack::SocketOption;

use super::{
    CallCx, CallOutcome, Outcome, ScriptSocket, SocketStage, Unsupported, address, arg_int, done,
    fail, sleeps, with_outs,
};
use crate::syntax::symbols as sys;
use crate::syntax::value::Value;

/// Parsed arguments of a call that sends or receives data.
struct TransferArgs {
    /// Total length of the call's buffers in bytes.
    len: usize,
    flags: i64,
    /// Index of the argument that contains the message header. `None` if the call has none.
    header: Option<usize>,
}

impl TransferArgs {
    fn new(name: &str, args: &[Value]) -> Result<Self, Unsupported> {
        let mut header = None;
        let (len, flags) = match name {
            "read" | "write" => (arg_int(args, 2)?, 0),
            "readv" | "writev" => (vector_len(args.get(1))?, 0),
            "recvmsg" | "sendmsg" => {
                header = Some(1);
                let vector = args.get(1).and_then(|header| header.field("msg_iov"));
                (vector_len(vector)?, arg_int(args, 2)?)
            }
            _ => (arg_int(args, 2)?, arg_int(args, 3)?),
        };
        let len = usize::try_from(len).map_err(|_| format!("the length {len} is negative"))?;
        Ok(Self { len, flags, header })
    }
}

fn vector_len(vector: Option<&Value>) -> Result<i64, Unsupported> {
    let Some(Value::List(parts)) = vector else { return Err("the vector is not a list".into()) };
    let len = |part: &Value| match part {
        Value::Struct(fields) => fields.get(1).and_then(|(_, value)| value.int()),
        _ => None,
    };
    let sum = parts.iter().try_fold(0i64, |sum, part| sum.checked_add(len(part)?));
    sum.ok_or_else(|| "an element of the vector has no length".to_owned())
}

impl ScriptSocket {
    pub(super) fn send(&mut self, cx: &mut CallCx<'_>, name: &str, args: &[Value]) -> Outcome {
        let transfer = TransferArgs::new(name, args)?;
        const KNOWN: i64 = sys::MSG_DONTWAIT
            | sys::MSG_NOSIGNAL
            | sys::MSG_MORE
            | sys::MSG_EOR
            | sys::MSG_OOB
            | sys::MSG_ZEROCOPY
            | sys::MSG_FASTOPEN;
        if transfer.flags & !KNOWN != 0 {
            return Err(format!("flags {:#x} of {name}", transfer.flags & !KNOWN));
        }
        if self.stage == SocketStage::Fresh {
            if transfer.flags & sys::MSG_FASTOPEN == 0 {
                return fail("EPIPE");
            }
            if cx.knobs.fast_open & 1 == 0 {
                return fail("EOPNOTSUPP");
            }
            let to = match transfer.header {
                Some(_) => None,
                None => args.get(4),
            };
            let remote = address(to, cx.remote)?;
            match self.open_connection(cx, remote, true) {
                Err(errno) => return fail(errno),
                Ok(waits) => self.defers_connect = waits,
            }
        }
        if self.stage == SocketStage::Listener {
            return fail("EPIPE");
        }
        let is_open = self.status(cx.world).connected;
        if (cx.progress.written == 0 || !is_open)
            && let Some(errno) = self.take_error(cx.world)
        {
            return fail(errno);
        }
        let status = self.status(cx.world);
        if self.shut_write || status.failed || status.closed {
            return fail("EPIPE");
        }
        if !status.connected && !self.defers_connect {
            return self.wait(transfer.flags, "EINPROGRESS", "EAGAIN");
        }
        self.write(cx, &transfer)
    }

    /// Blocks if the socket and the flags allow it. Otherwise returns the error `first` if a Fast
    /// Open without a cookie was just started, or `later` if not.
    fn wait(&mut self, flags: i64, first: &'static str, later: &'static str) -> Outcome {
        if sleeps(self, flags) {
            return Ok(CallOutcome::Blocked);
        }
        let begun = flags & sys::MSG_FASTOPEN != 0 && !self.told_connected;
        fail(if begun { first } else { later })
    }

    fn write(&mut self, cx: &mut CallCx<'_>, transfer: &TransferArgs) -> Outcome {
        let id = self.id(cx.world);
        let mut fills_syn = false;
        loop {
            let left = transfer.len - cx.progress.written;
            let room = match self.defers_connect && !sleeps(self, transfer.flags) {
                true => self.syn_room(cx),
                false => self.room(cx),
            };
            let bytes = vec![0; left.min(room as usize)];
            let more = transfer.flags & sys::MSG_MORE != 0;
            let Some(buffer) = cx.world.stack.send_buffer(id) else { return fail("EPIPE") };
            let n = buffer.write(&Payload::new(&bytes, Fragments::empty()));
            let queued = buffer.len();
            cx.progress.written += n as usize;
            self.written += u64::from(n);
            if n > 0 {
                // Ignore errors: the options fail only without a connection, and the bytes are sent
                // nevertheless.
                let _ = cx.world.stack.set_option(id, SocketOption::MoreComing(more));
                if transfer.flags & sys::MSG_OOB != 0 {
                    let _ = cx.world.stack.set_option(id, SocketOption::UrgentEnd(queued));
                }
                if transfer.flags & sys::MSG_EOR != 0 && cx.progress.written == transfer.len {
                    let _ = cx.world.stack.set_option(id, SocketOption::RecordEnd(queued));
                }
                cx.world.stack.send_ready(id);
                fills_syn =
                    std::mem::take(&mut self.defers_connect) && !sleeps(self, transfer.flags);
                cx.world.settle();
            }
            if cx.progress.written == transfer.len || n == 0 || fills_syn {
                break;
            }
        }
        let written = cx.progress.written;
        let is_open = self.status(cx.world).connected;
        if (written < transfer.len || !is_open) && sleeps(self, transfer.flags) {
            return Ok(CallOutcome::Blocked);
        }
        if written == 0 && transfer.len > 0 {
            return fail("EAGAIN");
        }
        if transfer.flags & sys::MSG_ZEROCOPY != 0
            && self.option(sys::SOL_SOCKET, sys::SO_ZEROCOPY) != 0
        {
            self.zero_copies.begin(self.written);
        }
        done(written as i64)
    }

    /// Returns the number of bytes that fit a SYN with all its options (RFC 7413 section 4.1.3). A
    /// call that must not block sends no further bytes.
    fn syn_room(&self, cx: &mut CallCx<'_>) -> u32 {
        const OPTIONS_MAX: u32 = 40;
        const TIMESTAMPS: u32 = 12;
        let tcp = self.info(cx).and_then(|info| info.tcp);
        let mss = tcp.map_or(0, |tcp| tcp.snd_mss + if tcp.timestamps { TIMESTAMPS } else { 0 });
        mss.saturating_sub(OPTIONS_MAX)
    }

    /// Returns the number of bytes that can be written now, limited by TCP_NOTSENT_LOWAT.
    pub(super) fn room(&mut self, cx: &mut CallCx<'_>) -> u32 {
        let room = self.send_buffer(cx.world).map_or(0, |buffer| buffer.room());
        let limit = match self.options.get(&(sys::SOL_TCP, sys::TCP_NOTSENT_LOWAT)) {
            Some(&limit) if limit != 0 => limit as u32,
            _ => cx.knobs.not_sent_lowat,
        };
        let tcp = self.info(cx).and_then(|info| info.tcp);
        let unsent = tcp.map_or(0, |tcp| tcp.notsent_bytes);
        if unsent >= limit { 0 } else { room }
    }

    pub(super) fn receive(&mut self, cx: &mut CallCx<'_>, name: &str, args: &[Value]) -> Outcome {
        let transfer = TransferArgs::new(name, args)?;
        const KNOWN: i64 = sys::MSG_DONTWAIT
            | sys::MSG_NOSIGNAL
            | sys::MSG_PEEK
            | sys::MSG_WAITALL
            | sys::MSG_TRUNC
            | sys::MSG_ERRQUEUE;
        if transfer.flags & !KNOWN != 0 {
            return Err(format!("flags {:#x} of {name}", transfer.flags & !KNOWN));
        }
        if transfer.flags & sys::MSG_ERRQUEUE != 0 {
            return self.receive_report(cx);
        }
        if self.stage != SocketStage::Stream {
            return fail("ENOTCONN");
        }
        let unread = self.unread(cx.world) as usize;
        let wanted = match transfer.flags & sys::MSG_WAITALL != 0 {
            true => transfer.len,
            false => transfer.len.min(1),
        };
        let status = self.status(cx.world);
        let is_over = status.ended || status.failed || status.closed || self.shut_read;
        if unread < wanted && !is_over {
            let is_partial = unread > 0 && !sleeps(self, transfer.flags);
            if !is_partial {
                return self.wait(transfer.flags, "EAGAIN", "EAGAIN");
            }
        }
        let n = unread.min(transfer.len);
        if n == 0
            && let Some(errno) = self.take_error(cx.world)
        {
            return fail(errno);
        }
        if transfer.flags & sys::MSG_PEEK == 0 {
            self.consume(cx, n as u32);
        }
        let outs = match transfer.header {
            Some(at) => vec![(at, self.received_header(cx, n))],
            None => Vec::new(),
        };
        with_outs(n as i64, outs)
    }

    fn consume(&mut self, cx: &mut CallCx<'_>, n: u32) {
        let (now, id) = (cx.world.now, self.id(cx.world));
        if let Some(buffer) = cx.world.stack.recv_buffer(id) {
            buffer.consume(n);
        }
        if n > 0 {
            cx.world.stack.recv_taken(now, id);
        }
    }

    /// Returns the message header, with the control messages that the socket options request.
    fn received_header(&mut self, cx: &mut CallCx<'_>, n: usize) -> Value {
        let mut control = Vec::new();
        if self.option(sys::SOL_TCP, sys::TCP_INQ) != 0 {
            let unread = i64::from(self.unread(cx.world));
            // Report one byte at the end of the stream, so that the program reads once more
            // (tcp(7)).
            let at_end = unread == 0 && self.status(cx.world).ended;
            control.push(Value::Struct(vec![
                ("cmsg_level".to_owned(), Value::Int(sys::SOL_TCP)),
                ("cmsg_type".to_owned(), Value::Int(sys::TCP_CM_INQ)),
                ("cmsg_data".to_owned(), Value::Int(unread + super::as_bool(at_end))),
            ]));
        }
        let part =
            Value::Struct(vec![(String::new(), Value::Any), (String::new(), Value::Int(n as i64))]);
        let mut fields = vec![
            ("msg_name".to_owned(), Value::Any),
            ("msg_iov".to_owned(), Value::List(vec![part])),
            ("msg_flags".to_owned(), Value::Int(0)),
        ];
        if !control.is_empty() {
            fields.push(("msg_control".to_owned(), Value::List(control)));
        }
        Value::Struct(fields)
    }

    fn receive_report(&mut self, cx: &mut CallCx<'_>) -> Outcome {
        let acknowledged = self.written - u64::from(self.unacknowledged(cx.world));
        match self.zero_copies.take(acknowledged) {
            Some(header) => with_outs(0, vec![(1, header)]),
            None => fail("EAGAIN"),
        }
    }
}
