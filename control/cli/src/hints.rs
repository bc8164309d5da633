//! Tells the user why clients of a published port were refused, by looking at the program's
//! sockets.
//!
//! The gateway handles the packets, but does not know the program's sockets. Its notices come from
//! the engine's thread, which must not wait for the list of sockets. Therefore a separate thread
//! requests the list.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use towpath_engine::{Remote, SocketEntry};
use towpath_gateway::{ForwardProtocol, Notice};

use crate::messages::Messages;

/// Starts the thread that reports `notices` to the user, and ends when all senders of the channel
/// are dropped.
///
/// # Errors
/// Fails if the thread cannot be created.
pub fn start(
    notices: Receiver<Notice>,
    remote: Remote,
    messages: Messages,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("towpath-hints".into()).spawn(move || {
        let mut unsettled = VecDeque::new();
        loop {
            let first = unsettled.front().map(|(due, _): &(Instant, Notice)| *due);
            let wait = first.map_or(Duration::MAX, |due| due.duration_since(Instant::now()));
            let notice = match notices.recv_timeout(wait) {
                Ok(notice @ Notice::LoopbackOnly { .. }) => {
                    unsettled.push_back((Instant::now() + SETTLE, notice));
                    continue;
                }
                Ok(notice) => notice,
                Err(RecvTimeoutError::Timeout) => match unsettled.pop_front() {
                    Some((_, notice)) => notice,
                    None => continue,
                },
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // If the engine has ended, use an empty list of sockets.
            let sockets = remote.sockets().unwrap_or_default();
            if let Some(text) = text(notice, &sockets, name) {
                messages.post(&text);
            }
        }
    })
}

/// Time that we wait before reporting that a server listens only on the loopback address. Some
/// servers open this socket first, and then further ones.
const SETTLE: Duration = Duration::from_millis(500);

/// Returns the text of a notice. If the program's socket accepts only connections from the
/// program's own loopback, the text names this socket. Returns `None` if the program has opened a
/// suitable socket in the meantime.
fn text(
    notice: Notice,
    sockets: &[SocketEntry],
    name: impl Fn(u32) -> Option<String>,
) -> Option<String> {
    let (Notice::NobodyListens { protocol, host, program }
    | Notice::LoopbackOnly { protocol, host, program }) = notice
    else {
        return Some(notice.to_string());
    };
    let is_early = matches!(notice, Notice::LoopbackOnly { .. });
    let plain = || (!is_early).then(|| notice.to_string());
    let (proto, state, suffix) = match protocol {
        ForwardProtocol::Tcp => ("tcp", "LISTEN", ""),
        ForwardProtocol::Udp => ("udp", "UNCONN", "/udp"),
    };
    let on_port = |entry: &SocketEntry| {
        let local: SocketAddr = entry.local.as_ref()?.parse().ok()?;
        let is_meant = (entry.proto, entry.state, local.port()) == (proto, state, program.port());
        is_meant.then_some(local)
    };
    let mut found = sockets.iter().filter_map(|entry| Some((on_port(entry)?, entry))).peekable();
    let Some(&(local, server)) = found.peek() else { return plain() };
    // In the meantime, the program may have opened a suitable socket, which will serve the next
    // client.
    if !found.all(|(local, _)| local.ip().to_canonical().is_loopback()) {
        return plain();
    }
    let named = server.pids.iter().find_map(|pid| Some(format!("{} (process {pid})", name(*pid)?)));
    let who = named.unwrap_or_else(|| "the program".to_owned());
    let all = match program {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let what = match is_early {
        true => format!("clients of {host}{suffix} are refused"),
        false => format!("a client of {host}{suffix} was turned away"),
    };
    Some(format!(
        "{what}: {who} listens on {local}{suffix} only, which clients of a published port do not \
         reach; let it listen on {all}"
    ))
}

/// Returns the name of a process. Control characters are escaped, because a terminal would
/// interpret them.
fn name(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end().escape_debug().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(proto: &'static str, state: &'static str, local: &str) -> SocketEntry {
        SocketEntry {
            proto,
            state,
            recv_q: 0,
            send_q: 0,
            local: Some(local.to_owned()),
            remote: None,
            cwnd: 0,
            rtt_us: 0,
            congestion: None,
            tcp: None,
            pids: vec![6, 7],
            recv_buffer: 0,
            send_buffer: 0,
            v6_only: false,
            device: None,
            slot: 0,
        }
    }

    #[test]
    fn a_server_on_loopback_is_named_and_no_other() {
        let said = |protocol, program: &str, sockets: &[SocketEntry]| {
            let host = "127.0.0.1:8080".parse().unwrap();
            let program = program.parse().unwrap();
            let notice = Notice::NobodyListens { protocol, host, program };
            let text =
                text(notice, sockets, |pid| (pid == 7).then(|| "server".to_owned())).unwrap();
            (text != notice.to_string()).then_some(text)
        };
        let tcp = |sockets: &[SocketEntry]| said(ForwardProtocol::Tcp, "10.0.2.15:80", sockets);
        let loopback = || socket("tcp", "LISTEN", "127.0.0.1:80");
        let wanted = "server (process 7) listens on 127.0.0.1:80 only, which";
        assert!(tcp(&[loopback()]).unwrap().contains(wanted));
        assert!(tcp(&[socket("tcp", "LISTEN", "[::ffff:127.0.0.1]:80"), loopback()]).is_some());
        let others = [
            socket("tcp", "LISTEN", "127.0.0.1:81"),
            socket("tcp", "ESTAB", "127.0.0.1:80"),
            socket("udp", "UNCONN", "127.0.0.1:80"),
        ];
        assert_eq!(tcp(&others), None);
        assert_eq!(tcp(&[]), None);
        // The program has opened a suitable listener in the meantime.
        assert_eq!(tcp(&[loopback(), socket("tcp", "LISTEN", "0.0.0.0:80")]), None);

        let mut nameless = socket("udp", "UNCONN", "[::1]:53");
        nameless.pids.clear();
        let text = said(ForwardProtocol::Udp, "[fd00:2::15]:53", &[nameless]).unwrap();
        assert!(text.contains("the program listens on [::1]:53/udp only"), "{text}");
        assert!(text.ends_with("listen on ::"), "{text}");
    }

    #[test]
    fn a_server_that_listens_elsewhere_soon_is_not_named() {
        let (host, program) = ("127.0.0.1:8080".parse().unwrap(), "10.0.2.15:80".parse().unwrap());
        let notice = Notice::LoopbackOnly { protocol: ForwardProtocol::Tcp, host, program };
        let said = |sockets: &[SocketEntry]| text(notice, sockets, |_| Some("server".to_owned()));
        let (loopback, all) =
            (|| socket("tcp", "LISTEN", "127.0.0.1:80"), socket("tcp", "LISTEN", "0.0.0.0:80"));
        let wanted = "clients of 127.0.0.1:8080 are refused: server (process 6) listens on";
        assert!(said(&[loopback()]).unwrap().starts_with(wanted));
        assert_eq!((said(&[]), said(&[loopback(), all])), (None, None));
    }
}
