//! System calls poll(2) and epoll(7).

use std::time::Duration;

use towpath_stack::SocketState;
use towpath_tcp::State;

use super::{
    CallCx, CallOutcome, OpenFile, OpenFiles, Outcome, ScriptSocket, SocketStage, arg, arg_int,
    done, fail, with_outs,
};
use crate::syntax::symbols as sys;
use crate::syntax::value::Value;

/// Descriptors that an epoll descriptor monitors.
#[derive(Debug, Default)]
pub struct ScriptEpoll {
    entries: Vec<EpollEntry>,
}

#[derive(Debug)]
struct EpollEntry {
    fd: i64,
    /// Monitored events, with the flags EPOLLET and EPOLLONESHOT. 0 after a one-shot event was
    /// reported.
    events: i64,
    data: Value,
    /// Number of edges, and ready events, at the time of the last report.
    reported: Option<(u32, i64)>,
}

impl ScriptEpoll {
    pub fn forget(&mut self, fd: i64) {
        self.entries.retain(|entry| entry.fd != fd);
    }
}

impl OpenFiles {
    pub(super) fn epoll_create(&mut self, fd: i64) -> Outcome {
        self.insert(fd, OpenFile::Epoll(ScriptEpoll::default()))
    }

    pub(super) fn epoll_ctl(&mut self, cx: &mut CallCx<'_>, args: &[Value]) -> Outcome {
        let (set, operation, fd) = (arg_int(args, 0)?, arg_int(args, 1)?, arg_int(args, 2)?);
        if !self.table.contains_key(&fd) {
            return fail("EBADF");
        }
        let event = arg(args, 3)?;
        let events = event.field("events").and_then(Value::int).unwrap_or(0);
        let data = event.clone();
        let Some(OpenFile::Epoll(set)) = self.table.get_mut(&set) else { return fail("EBADF") };
        let known = set.entries.iter().position(|entry| entry.fd == fd);
        match (operation, known) {
            (sys::EPOLL_CTL_ADD, None) => {
                set.entries.push(EpollEntry { fd, events, data, reported: None });
            }
            (sys::EPOLL_CTL_ADD, Some(_)) => return fail("EEXIST"),
            (sys::EPOLL_CTL_MOD, Some(at)) => {
                set.entries[at] = EpollEntry { fd, events, data, reported: None };
            }
            (sys::EPOLL_CTL_DEL, Some(at)) => {
                set.entries.remove(at);
            }
            _ => return fail("ENOENT"),
        }
        cx.world.settle();
        done(0)
    }

    pub(super) fn epoll_wait(&mut self, cx: &mut CallCx<'_>, args: &[Value]) -> Outcome {
        let (epoll, max) = (arg_int(args, 0)?, arg_int(args, 2)?);
        let Some(OpenFile::Epoll(set)) = self.table.get(&epoll) else { return fail("EBADF") };
        let fds: Vec<(i64, i64)> = set.entries.iter().map(|e| (e.fd, e.events)).collect();
        let ready: Vec<(i64, u32)> =
            fds.iter().map(|(fd, events)| self.ready(cx, *fd, *events)).collect();
        let Some(OpenFile::Epoll(set)) = self.table.get_mut(&epoll) else { return fail("EBADF") };
        let mut found = Vec::new();
        for (entry, (events, edges)) in set.entries.iter_mut().zip(ready) {
            let is_edge = entry.events & sys::EPOLLET != 0;
            let is_new = entry.reported != Some((edges, events));
            if entry.events == 0 || events == 0 || is_edge && !is_new || found.len() as i64 >= max {
                continue;
            }
            entry.reported = Some((edges, events));
            if entry.events & sys::EPOLLONESHOT != 0 {
                entry.events = 0;
            }
            let data = entry.data.field("fd").cloned().map(|fd| ("fd".to_owned(), fd));
            let fields = [Some(("events".to_owned(), Value::Int(events))), data];
            found.push(Value::Struct(fields.into_iter().flatten().collect()));
        }
        let count = found.len() as i64;
        if count == 0 {
            return wait_until(cx, arg_int(args, 3)?, Vec::new());
        }
        let out = if count == 1 { found.remove(0) } else { Value::List(found) };
        with_outs(count, vec![(1, out)])
    }

    pub(super) fn poll(&mut self, cx: &mut CallCx<'_>, args: &[Value]) -> Outcome {
        let Value::List(list) = arg(args, 0)? else { return Err("poll needs a list".to_owned()) };
        let (mut count, mut out) = (0, Vec::new());
        for entry in list {
            let field = |name| entry.field(name).and_then(Value::int);
            let fd = field("fd").ok_or("an element of poll has no fd")?;
            let wanted = field("events").unwrap_or(0);
            let (events, _) = self.ready(cx, fd, wanted);
            count += super::as_bool(events != 0);
            out.push(Value::Struct(vec![
                ("fd".to_owned(), Value::Int(fd)),
                ("events".to_owned(), Value::Int(wanted)),
                ("revents".to_owned(), Value::Int(events)),
            ]));
        }
        let outs = vec![(0, Value::List(out))];
        match count {
            0 => wait_until(cx, arg_int(args, 2)?, outs),
            _ => with_outs(count, outs),
        }
    }

    /// Returns the ready events of a descriptor that are in `wanted`. Also returns the number of
    /// edges: changes that edge-triggered epoll reports.
    fn ready(&mut self, cx: &mut CallCx<'_>, fd: i64, wanted: i64) -> (i64, u32) {
        let Some(OpenFile::Socket(socket)) = self.table.get_mut(&fd) else {
            return (sys::POLLNVAL, 0);
        };
        let edges = socket.status(cx.world).edges;
        let always = sys::POLLERR | sys::POLLHUP;
        (socket.ready_events(cx) & (wanted | always), edges)
    }
}

/// Blocks for at most `timeout` milliseconds. A negative timeout means no limit.
fn wait_until(cx: &mut CallCx<'_>, timeout: i64, outs: Vec<(usize, Value)>) -> Outcome {
    let end = match u64::try_from(timeout) {
        Err(_) => return Ok(CallOutcome::Blocked),
        Ok(ms) => *cx.progress.deadline.get_or_insert(cx.world.now + Duration::from_millis(ms)),
    };
    if cx.world.now >= end { with_outs(0, outs) } else { Ok(CallOutcome::Blocked) }
}

impl ScriptSocket {
    /// Returns all events of the socket that are ready, as Linux's `tcp_poll` does.
    fn ready_events(&mut self, cx: &mut CallCx<'_>) -> i64 {
        let acknowledged = self.written - u64::from(self.unacknowledged(cx.world));
        let has_report = self.zero_copies.is_ready(acknowledged);
        let unread = self.unread(cx.world) > 0;
        let room = self.room(cx);
        let queued = self.unacknowledged(cx.world);
        let state = self.info(cx).map(|info| info.state);
        let status = self.status(cx.world);
        let mut events = 0;
        if has_report || status.error.is_some() {
            events |= sys::POLLERR;
        }
        match self.stage {
            SocketStage::Fresh => return sys::POLLOUT | sys::POLLHUP,
            SocketStage::Listener => {
                return events | if status.children.is_empty() { 0 } else { sys::POLLIN };
            }
            SocketStage::Stream => {}
        }
        let is_closed = matches!(state, None | Some(SocketState::Tcp(State::Closed)));
        let ended = status.ended || self.shut_read || is_closed;
        if ended && self.shut_write || is_closed {
            events |= sys::POLLHUP;
        }
        if ended {
            events |= sys::POLLIN | sys::POLLRDHUP;
        }
        if !status.connected && !is_closed {
            let defers = self.defers_connect && status.error.is_none();
            return events | if defers { sys::POLLOUT } else { 0 };
        }
        if unread {
            events |= sys::POLLIN;
        }
        // The socket is writable if a third of its buffer is free, as in Linux's
        // `sk_stream_is_writeable`.
        if is_closed || self.shut_write || room > 0 && room >= queued / 2 {
            events |= sys::POLLOUT;
        }
        events
    }
}
