//! Formats the table of `towpath ss`, and the summary of `-s`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;

use rustix::process::geteuid;

use super::args::SsArgs;
use super::info::{extended, info_line, memory, timer};
use super::services::Services;
use towpath_model::{Answer, Proto, ShownSocket, user_name};

const COLUMNS: [&str; 7] =
    ["Netid", "State", "Recv-Q", "Send-Q", "Local Address:Port", "Peer Address:Port", "Process"];

/// Formats one line for each socket in the columns of ss(8). Columns are as wide as their longest
/// entry.
pub(super) fn table(args: &SsArgs, answers: &[Answer], services: &Services) -> String {
    let mut rows = Vec::new();
    if !args.no_header {
        rows.push((COLUMNS.map(str::to_owned), None));
    }
    for answer in answers {
        for socket in &answer.sockets {
            let mut columns = columns(answer, socket, services, args.processes);
            let beside = [
                args.options.then(|| timer(socket)).flatten(),
                args.extended.then(|| extended(socket)),
            ];
            for more in beside.into_iter().flatten() {
                columns[6] += &format!(" {more}");
            }
            let mut lines: Vec<String> = Vec::new();
            lines.extend(args.memory.then(|| memory(socket)));
            lines.extend(args.info.then(|| info_line(socket)).flatten());
            let below = (!lines.is_empty()).then(|| lines.join(" "));
            rows.push((columns, below));
        }
    }
    // As in ss, omit the column Netid if only one protocol was requested.
    let first = usize::from(args.tcp != args.udp);
    let widths: Vec<_> = (0..COLUMNS.len())
        .map(|i| rows.iter().map(|(columns, _)| columns[i].chars().count()).max().unwrap_or(0))
        .collect();
    let mut out = String::new();
    for (columns, below) in &rows {
        let padded: Vec<_> =
            (first..COLUMNS.len()).map(|i| format!("{:w$}", columns[i], w = widths[i])).collect();
        out += padded.join(" ").trim_end();
        if let Some(below) = below {
            out += if args.oneline { " " } else { "\n\t " };
            out += below;
        }
        out.push('\n');
    }
    out
}

fn columns(answer: &Answer, socket: &ShownSocket, services: &Services, named: bool) -> [String; 7] {
    let wildcard = match socket.local {
        Some(SocketAddr::V6(_)) => "[::]:*",
        Some(SocketAddr::V4(_)) => "0.0.0.0:*",
        None => "*:*",
    };
    let show = |addr: Option<SocketAddr>| {
        addr.map_or_else(|| wildcard.to_owned(), |addr| services.show(socket.proto, addr))
    };
    [
        socket.proto.name().into(),
        socket.state.as_str().into(),
        socket.recv_q.to_string(),
        socket.send_q.to_string(),
        show(socket.local),
        show(socket.remote),
        process(answer, socket, named),
    ]
}

/// Formats the run that owns a socket in the syntax of ss. With `named`, also formats the processes
/// that have it open.
fn process(answer: &Answer, socket: &ShownSocket, named: bool) -> String {
    let run = match answer.owner == geteuid().as_raw() {
        true => format!("towpath={}", answer.pid),
        // Show the user's name, so that root does not mistake another user's run for one of its
        // own.
        false => format!("towpath={},user={}", answer.pid, user_name(answer.owner)),
    };
    let users: Vec<String> = match named {
        true => socket.holders.iter().filter_map(|pid| user(*pid, answer.owner)).collect(),
        false => Vec::new(),
    };
    if let Some(flow) = &socket.flow {
        let (up, down) = (flow.bytes_to_server, flow.bytes_to_client);
        let via = flow.via.map(|via| format!(" via:{via}")).unwrap_or_default();
        return format!("({run}) bytes_to_server:{up} bytes_to_client:{down}{via}");
    }
    if users.is_empty() { format!("({run})") } else { format!("users:({}) {run}", users.join(",")) }
}

/// Formats the name and id of a process. Returns `None` if the process has ended, or is not visible
/// in /proc. Also returns `None` if it belongs to another user than the run, unless the run is
/// root's.
fn user(pid: u32, owner: u32) -> Option<String> {
    let its_owner = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    if owner != 0 && its_owner != owner {
        return None;
    }
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(format!("({:?},pid={pid})", name.trim_end()))
}

/// Counts the sockets of all runs by state and protocol, and formats them as `ss -s` does.
pub(super) fn summary(answers: &[Answer]) -> String {
    let sockets: Vec<&ShownSocket> = answers.iter().flat_map(|answer| &answer.sockets).collect();
    let count =
        |what: &dyn Fn(&ShownSocket) -> bool| sockets.iter().filter(|socket| what(socket)).count();
    let is_tcp = |socket: &ShownSocket| socket.proto == Proto::Tcp;
    let in_state =
        |state| count(&|socket: &ShownSocket| is_tcp(socket) && socket.state.as_str() == state);
    let orphaned = count(&|socket: &ShownSocket| {
        is_tcp(socket) && socket.slot.is_some() && socket.holders.is_empty()
    });
    let mut out = format!("Total: {}\n", sockets.len());
    // Ignore errors: writing to a String cannot fail.
    let _ = writeln!(
        out,
        "TCP:   {} (estab {}, listen {}, closed {}, orphaned {orphaned}, timewait {})\n",
        count(&is_tcp),
        in_state("ESTAB"),
        in_state("LISTEN"),
        in_state("UNCONN"),
        in_state("TIME-WAIT"),
    );
    let _ = writeln!(out, "{:<9} {:<9} {:<9} IPv6", "Transport", "Total", "IP");
    for (name, proto) in [("ICMP", Proto::Icmp), ("UDP", Proto::Udp), ("TCP", Proto::Tcp)] {
        let of = |v6: bool| {
            count(&|socket: &ShownSocket| {
                socket.proto == proto && socket.local.is_some_and(|addr| addr.is_ipv6()) == v6
            })
        };
        let _ =
            writeln!(out, "{name:<9} {:<9} {:<9} {}", of(false) + of(true), of(false), of(true));
    }
    out
}

#[cfg(test)]
mod tests {
    use towpath_model::Word;

    use super::super::samples::{answer, args, figures};
    use super::*;

    #[test]
    fn columns_line_up() {
        let names =
            Services::parse("# comment\nhttp 80/tcp www # web\nhttp 80/udp\ndomain 53/udp\n");
        let text = table(&args(&["-a"]), &[answer()], &names);
        let wanted = "\
Netid State  Recv-Q Send-Q Local Address:Port Peer Address:Port Process
tcp   LISTEN 1      20     0.0.0.0:http       0.0.0.0:*         (towpath=42)
tcp   ESTAB  1      20     10.0.2.15:http     10.0.2.2:40000    (towpath=42)
udp   UNCONN 1      20     [::]:domain        [::]:*            (towpath=42)
";
        assert_eq!(text, wanted);
        let text = table(&args(&["-tan"]), &[answer()], &Services::default());
        assert!(text.starts_with("State  Recv-Q Send-Q"), "{text}");
        assert!(text.contains("10.0.2.15:80       10.0.2.2:40000"), "{text}");
    }

    #[test]
    fn info_and_holder_in_the_words_of_ss() {
        let mut answer = answer();
        let connection = &mut answer.sockets[1];
        (connection.congestion, connection.rtt_us, connection.cwnd) =
            (Some(Word::known("cubic")), 250, 10);
        // A process that has ended is omitted from the list.
        connection.holders = vec![u32::MAX, std::process::id()];
        let text = table(&args(&["-ti"]), std::slice::from_ref(&answer), &Services::default());
        assert!(text.contains("\n\t cubic\n"), "{text}");
        answer.sockets[1].tcp = Some(figures());
        let text = table(&args(&["-tip"]), std::slice::from_ref(&answer), &Services::default());
        let wanted = "\n\t ts sack ecn cubic wscale:8,7 rto:204.5 rtt:0.25/0.1 ato:40 mss:1448 \
                      pmtu:1500 rcvmss:536 advmss:1448 cwnd:10 bytes_sent:90 bytes_acked:80 \
                      segs_out:4 lastsnd:12 busy:10ms rwnd_limited:5ms(50.0%) retrans:0/2 \
                      minrtt:0.2 snd_wnd:65536 rcv_wnd:64000\n";
        assert!(text.contains(wanted), "{text}");
        assert!(text.contains(&format!(",pid={})) towpath=42", std::process::id())), "{text}");
        let back: Answer = serde_json::from_slice(&serde_json::to_vec(&answer).unwrap()).unwrap();
        assert_eq!(back, answer);
    }

    #[test]
    fn nobody_is_named_who_is_gone() {
        let mut answer = answer();
        answer.sockets[0].holders = vec![u32::MAX];
        let text = table(&args(&["-lp"]), std::slice::from_ref(&answer), &Services::default());
        assert!(text.contains(" (towpath=42)") && !text.contains("users"), "{text}");
    }

    #[test]
    fn timers_memory_and_more_in_the_words_of_ss() {
        let mut answer = answer();
        answer.sockets[1].tcp = Some(figures());
        answer.sockets[2].device = Some(Word::known("eth0"));
        let services = Services::default();
        let text = table(&args(&["-toH"]), std::slice::from_ref(&answer), &services);
        assert!(
            text.starts_with("LISTEN ") && text.contains(" timer:(keepalive,119min,0)\n"),
            "{text}"
        );
        let text = table(&args(&["-mO"]), std::slice::from_ref(&answer), &services);
        assert!(text.contains("(towpath=42) skmem:(r1,rb65536,w20,tb16384)\n"), "{text}");
        let text = table(&args(&["-e"]), std::slice::from_ref(&answer), &services);
        assert!(text.contains("(towpath=42) sk:a dev:eth0 v6only:0\n"), "{text}");
        answer.sockets[1].tcp.as_mut().unwrap().timer = Some("\u{1b}[2J".into());
        let text = table(&args(&["-to"]), std::slice::from_ref(&answer), &services);
        assert!(!text.contains("timer") && !text.contains('\u{1b}'), "{text}");
        let told = "Total: 3\nTCP:   2 (estab 1, listen 1, closed 0, orphaned 2, timewait 0)\n";
        assert!(summary(&[answer]).starts_with(told));
    }
}
