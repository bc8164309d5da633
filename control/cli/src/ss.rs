//! `towpath ss`: the sockets of running stacks, in the columns and spelling of ss(8).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::args::SsArgs;
use crate::error::{ExitCode, Failure};
use crate::instance;

/// What an instance answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Process id of `towpath run`.
    pub pid: u32,
    /// PROGRAM and its arguments.
    pub program: Vec<String>,
    pub sockets: Vec<Socket>,
}

/// One socket, as `towpath_engine::SocketEntry` is written in JSON. Also what `towpath ss -j` prints,
/// with the instance in front.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Socket {
    pub proto: Proto,
    /// As ss(8) spells it: ESTAB, LISTEN, UNCONN, TIME-WAIT, …
    pub state: String,
    /// Unread bytes; of a listener, connections to accept.
    pub recv_q: u64,
    /// Unacknowledged bytes; of a listener, the backlog.
    pub send_q: u64,
    /// None: not bound.
    pub local: Option<SocketAddr>,
    /// None: not connected.
    pub remote: Option<SocketAddr>,
    /// Congestion window in segments; 0 where there is none.
    pub cwnd: u32,
    /// Smoothed round trip in microseconds.
    pub rtt_us: u32,
    pub congestion: Option<String>,
    /// A process that holds it; 0: none any more.
    pub holder: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Proto {
    Tcp,
    Udp,
    Icmp,
}

impl Proto {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        }
    }
}

/// Runs the command.
pub fn ss(args: &SsArgs) -> Result<()> {
    let mut answers = Vec::new();
    for (pid, bytes) in instance::ask_all(args.pid) {
        let answer: Answer = serde_json::from_slice(&bytes).with_context(|| {
            format!("the run with process id {pid} gave no readable answer; is it another version?")
        })?;
        answers.push(answer);
    }
    if let (Some(pid), true) = (args.pid, answers.is_empty()) {
        return Err(Failure::error(
            ExitCode::Usage,
            format!("no `towpath run` of this user has process id {pid}"),
        ));
    }
    for answer in &mut answers {
        answer.sockets.retain(|socket| is_wanted(args, socket));
    }
    let text = if args.json { json(&answers)? } else { table(args, &answers, &services(args)) };
    // A reader that closed the pipe has seen enough.
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output"),
    }
}

fn is_wanted(args: &SsArgs, socket: &Socket) -> bool {
    let any_kind = !args.tcp && !args.udp;
    let kind = match socket.proto {
        Proto::Tcp => args.tcp || any_kind,
        Proto::Udp => args.udp || any_kind,
        Proto::Icmp => any_kind,
    };
    let waiting = matches!(socket.state.as_str(), "LISTEN" | "UNCONN");
    kind && (args.all || waiting == args.listening)
}

fn json(answers: &[Answer]) -> Result<String> {
    #[derive(Serialize)]
    struct Row<'a> {
        pid: u32,
        program: &'a str,
        #[serde(flatten)]
        socket: &'a Socket,
    }
    let rows = answers.iter().flat_map(|answer| {
        let program = answer.program.first().map_or("", String::as_str);
        answer.sockets.iter().map(move |socket| Row { pid: answer.pid, program, socket })
    });
    let rows = rows.collect::<Vec<_>>();
    Ok(serde_json::to_string_pretty(&rows)? + "\n")
}

const COLUMNS: [&str; 7] =
    ["Netid", "State", "Recv-Q", "Send-Q", "Local Address:Port", "Peer Address:Port", "Process"];

fn table(args: &SsArgs, answers: &[Answer], services: &Services) -> String {
    let mut rows = vec![(COLUMNS.map(str::to_owned), None)];
    for answer in answers {
        for socket in &answer.sockets {
            let info = if args.info { info_line(socket) } else { None };
            rows.push((columns(answer, socket, services), info));
        }
    }
    // As ss does: no Netid when only one kind was asked for.
    let first = usize::from(args.tcp != args.udp);
    let widths: Vec<_> = (0..COLUMNS.len())
        .map(|i| rows.iter().map(|(columns, _)| columns[i].chars().count()).max().unwrap_or(0))
        .collect();
    let mut out = String::new();
    for (columns, info) in &rows {
        let padded: Vec<_> =
            (first..COLUMNS.len()).map(|i| format!("{:w$}", columns[i], w = widths[i])).collect();
        out += padded.join(" ").trim_end();
        out.push('\n');
        if let Some(info) = info {
            let _ = writeln!(out, "\t {info}");
        }
    }
    out
}

fn columns(answer: &Answer, socket: &Socket, services: &Services) -> [String; 7] {
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
        socket.state.clone(),
        socket.recv_q.to_string(),
        socket.send_q.to_string(),
        show(socket.local),
        show(socket.remote),
        process(answer, socket),
    ]
}

/// Who holds it, in the spelling of ss, and which run that belongs to.
fn process(answer: &Answer, socket: &Socket) -> String {
    let run = format!("towpath={}", answer.pid);
    if socket.holder == 0 {
        return format!("({run})");
    }
    let name = std::fs::read_to_string(format!("/proc/{}/comm", socket.holder)).unwrap_or_default();
    format!("users:(({:?},pid={})) {run}", name.trim_end(), socket.holder)
}

/// What TCP knows, in the spelling of `ss -i`.
fn info_line(socket: &Socket) -> Option<String> {
    let congestion = socket.congestion.as_ref()?;
    let mut out = congestion.clone();
    if socket.rtt_us > 0 {
        let _ = write!(out, " rtt:{}", f64::from(socket.rtt_us) / 1000.0);
    }
    if socket.cwnd > 0 {
        let _ = write!(out, " cwnd:{}", socket.cwnd);
    }
    Some(out)
}

/// Names of ports.
#[derive(Default)]
struct Services(BTreeMap<(u16, String), String>);

fn services(args: &SsArgs) -> Services {
    if args.numeric {
        return Services::default();
    }
    Services::parse(&std::fs::read_to_string("/etc/services").unwrap_or_default())
}

impl Services {
    /// services(5): `name port/protocol aliases # comment`.
    fn parse(text: &str) -> Self {
        let mut names = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
            let (Some(name), Some((port, protocol))) =
                (words.next(), words.next().and_then(|w| w.split_once('/')))
            else {
                continue;
            };
            if let Ok(port) = port.parse() {
                names.entry((port, protocol.to_owned())).or_insert_with(|| name.to_owned());
            }
        }
        Self(names)
    }

    fn show(&self, proto: Proto, addr: SocketAddr) -> String {
        let port = match self.0.get(&(addr.port(), proto.name().to_owned())) {
            _ if addr.port() == 0 => "*",
            Some(name) => name,
            None => return addr.to_string(),
        };
        match addr {
            SocketAddr::V4(addr) => format!("{}:{port}", addr.ip()),
            SocketAddr::V6(addr) => format!("[{}]:{port}", addr.ip()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(proto: Proto, state: &str, local: &str, remote: Option<&str>) -> Socket {
        Socket {
            proto,
            state: state.into(),
            recv_q: 1,
            send_q: 20,
            local: Some(local.parse().unwrap()),
            remote: remote.map(|p| p.parse().unwrap()),
            cwnd: 0,
            rtt_us: 0,
            congestion: None,
            holder: 0,
        }
    }

    fn answer() -> Answer {
        Answer {
            pid: 42,
            program: vec!["/usr/bin/python3".into(), "x.py".into()],
            sockets: vec![
                socket(Proto::Tcp, "LISTEN", "0.0.0.0:80", None),
                socket(Proto::Tcp, "ESTAB", "10.0.2.15:80", Some("10.0.2.2:40000")),
                socket(Proto::Udp, "UNCONN", "[::]:53", None),
            ],
        }
    }

    fn args(words: &[&str]) -> SsArgs {
        use clap::Parser;
        match crate::args::Cli::parse_from(["towpath", "ss"].iter().chain(words)).command {
            crate::args::Command::Ss(args) => args,
            _ => unreachable!("ss was given"),
        }
    }

    #[test]
    fn filters() {
        let states = |words: &[&str]| {
            let args = args(words);
            let sockets = answer().sockets.into_iter().filter(|s| is_wanted(&args, s));
            sockets.map(|s| s.state).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(states(&[]), "ESTAB");
        assert_eq!(states(&["-l"]), "LISTEN UNCONN");
        assert_eq!(states(&["-a"]), "LISTEN ESTAB UNCONN");
        assert_eq!(states(&["-tl"]), "LISTEN");
        assert_eq!(states(&["-ua"]), "UNCONN");
    }

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
            (Some("cubic".into()), 250, 10);
        connection.holder = std::process::id();
        let text = table(&args(&["-ti"]), std::slice::from_ref(&answer), &Services::default());
        assert!(text.contains("\n\t cubic rtt:0.25 cwnd:10\n"), "{text}");
        assert!(text.contains(&format!(",pid={})) towpath=42", std::process::id())), "{text}");
        let back: Answer = serde_json::from_slice(&serde_json::to_vec(&answer).unwrap()).unwrap();
        assert_eq!(back, answer);
    }

    #[test]
    fn json_is_an_array_of_flat_objects() {
        let value: serde_json::Value = serde_json::from_str(&json(&[answer()]).unwrap()).unwrap();
        assert_eq!(value[1]["pid"], 42);
        assert_eq!(value[1]["state"], "ESTAB");
        assert_eq!(value[1]["remote"], "10.0.2.2:40000");
        assert_eq!(value[2]["remote"], serde_json::Value::Null);
        assert_eq!(json(&[]).unwrap(), "[]\n");
    }
}
