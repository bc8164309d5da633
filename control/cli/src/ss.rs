//! `towpath ss`: the sockets of running stacks, in the columns and spelling of ss(8).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use towpath_engine::TcpFigures;

use crate::args::SsArgs;
use crate::error::{ExitCode, Failure};
use crate::instance::{self, NoAnswer};
use crate::messages;

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
    pub state: Word,
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
    pub congestion: Option<Word>,
    #[serde(flatten)]
    pub tcp: Option<TcpFigures>,
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

/// A word that a terminal shows as it is: an answer may come from another user, to root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Word(String);

impl Word {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What the source says needs no check.
impl From<&'static str> for Word {
    fn from(text: &'static str) -> Self {
        Self(text.into())
    }
}

impl TryFrom<String> for Word {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        // Longer than any state of ss(8) and any name in tcp_congestion_control (16, TCP_CA_NAME_MAX).
        const LEN_MAX: usize = 32;
        let plain = text.len() <= LEN_MAX && text.bytes().all(|b| b.is_ascii_graphic());
        if plain { Ok(Self(text)) } else { Err("not a word") }
    }
}

/// Runs the command.
pub fn ss(args: &SsArgs) -> Result<()> {
    let (mut answers, mut faults) = (Vec::new(), Vec::new());
    for (pid, told) in instance::ask_all(args.pid) {
        match read(pid, told) {
            Ok(answer) => answers.push(answer),
            Err(why) => faults.push(format!("the run with process id {pid} {why}")),
        }
    }
    if let (Some(pid), true) = (args.pid, answers.is_empty()) {
        if !faults.is_empty() {
            bail!("{}", faults.join("; "));
        }
        return Err(Failure::error(
            ExitCode::Usage,
            format!("no `towpath run` of this user has process id {pid}"),
        ));
    }
    // One that does not answer, or answers nonsense, is no reason to show nothing of the others.
    faults.iter().for_each(|fault| messages::error(fault));
    for answer in &mut answers {
        answer.sockets.retain(|socket| is_wanted(args, socket));
    }
    let text = if args.json { json(&answers)? } else { table(args, &answers, &services(args)) };
    crate::output::write(text.as_bytes())
}

/// `Err`: the rest of a sentence that begins with the run.
fn read(pid: u32, told: Result<Vec<u8>, NoAnswer>) -> Result<Answer, String> {
    let bytes = told.map_err(|why| why.to_string())?;
    let answer = serde_json::from_slice(&bytes).ok().filter(|answer: &Answer| answer.pid == pid);
    answer.ok_or_else(|| "gave no readable answer; is it another version?".to_owned())
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
    Ok(for_a_terminal(&serde_json::to_string_pretty(&rows)?) + "\n")
}

/// JSON may contain control characters beyond ASCII in its strings, which some terminals obey: they
/// become escapes, which mean the same.
fn for_a_terminal(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_control() && c != '\n' {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
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
        socket.state.as_str().into(),
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

/// What TCP knows, in the spelling and order of `ss -i`.
fn info_line(socket: &Socket) -> Option<String> {
    let congestion = socket.congestion.as_ref()?;
    let mut out = InfoLine(String::new());
    let tcp = socket.tcp.as_ref();
    out.flag("ts", tcp.is_some_and(|tcp| tcp.ts));
    out.flag("sack", tcp.is_some_and(|tcp| tcp.sack));
    out.flag(congestion.as_str(), true);
    let Some(tcp) = tcp else { return Some(out.0) };
    if let (Some(snd), Some(rcv)) = (tcp.snd_wscale, tcp.rcv_wscale) {
        out.show("wscale", format_args!("{snd},{rcv}"));
    }
    out.show("rto", ms(tcp.rto_us));
    out.unless_0("backoff", tcp.backoff.into());
    if socket.rtt_us > 0 {
        out.show("rtt", format_args!("{}/{}", ms(socket.rtt_us), ms(tcp.rttvar_us)));
    }
    out.show("ato", ms(tcp.ato_us));
    out.show("mss", tcp.mss);
    out.unless_0("pmtu", tcp.pmtu.into());
    out.unless_0("rcvmss", tcp.rcvmss.into());
    out.show("advmss", tcp.advmss);
    out.show("cwnd", socket.cwnd);
    if let Some(ssthresh) = tcp.ssthresh {
        out.show("ssthresh", ssthresh);
    }
    traffic(tcp, &mut out);
    Some(out.0)
}

fn traffic(tcp: &TcpFigures, out: &mut InfoLine) {
    out.unless_0("bytes_sent", tcp.bytes_sent);
    out.unless_0("bytes_retrans", tcp.bytes_retrans);
    out.unless_0("bytes_acked", tcp.bytes_acked);
    out.unless_0("bytes_received", tcp.bytes_received);
    out.unless_0("segs_out", tcp.segs_out.into());
    out.unless_0("segs_in", tcp.segs_in.into());
    out.unless_0("data_segs_out", tcp.data_segs_out.into());
    out.unless_0("data_segs_in", tcp.data_segs_in.into());
    for (name, since) in
        [("lastsnd", tcp.lastsnd_ms), ("lastrcv", tcp.lastrcv_ms), ("lastack", tcp.lastack_ms)]
    {
        if let Some(since) = since {
            out.show(name, since);
        }
    }
    out.unless_0("delivered", tcp.delivered.into());
    if tcp.busy_ms > 0 {
        out.show("busy", format_args!("{}ms", tcp.busy_ms));
    }
    for (name, limited) in
        [("rwnd_limited", tcp.rwnd_limited_ms), ("sndbuf_limited", tcp.sndbuf_limited_ms)]
    {
        if limited > 0 {
            let percent = limited as f64 * 100.0 / tcp.busy_ms.max(1) as f64;
            out.show(name, format_args!("{limited}ms({percent:.1}%)"));
        }
    }
    out.unless_0("unacked", tcp.unacked.into());
    if tcp.retrans_total > 0 {
        out.show("retrans", format_args!("{}/{}", tcp.retrans, tcp.retrans_total));
    }
    out.unless_0("lost", tcp.lost.into());
    out.unless_0("sacked", tcp.sacked.into());
    out.unless_0("notsent", tcp.notsent.into());
    if tcp.minrtt_us > 0 {
        out.show("minrtt", ms(tcp.minrtt_us));
    }
    out.unless_0("rcv_ooopack", tcp.rcv_ooopack.into());
    out.show("snd_wnd", tcp.snd_wnd);
    out.show("rcv_wnd", tcp.rcv_wnd);
}

fn ms(us: u32) -> f64 {
    f64::from(us) / 1000.0
}

/// Words with a space between.
struct InfoLine(String);

impl InfoLine {
    fn flag(&mut self, word: &str, on: bool) {
        if on {
            let space = if self.0.is_empty() { "" } else { " " };
            self.0 += &format!("{space}{word}");
        }
    }

    fn show(&mut self, name: &str, value: impl std::fmt::Display) {
        self.flag(&format!("{name}:{value}"), true);
    }

    fn unless_0(&mut self, name: &str, value: u64) {
        if value != 0 {
            self.show(name, value);
        }
    }
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

    fn socket(proto: Proto, state: &'static str, local: &str, remote: Option<&str>) -> Socket {
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
            tcp: None,
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

    fn figures() -> TcpFigures {
        TcpFigures {
            ts: true,
            sack: true,
            snd_wscale: Some(8),
            rcv_wscale: Some(7),
            rto_us: 204_500,
            backoff: 0,
            rttvar_us: 100,
            minrtt_us: 200,
            ato_us: 40_000,
            mss: 1448,
            pmtu: 1500,
            rcvmss: 536,
            advmss: 1448,
            ssthresh: None,
            bytes_sent: 90,
            bytes_retrans: 0,
            bytes_acked: 80,
            bytes_received: 0,
            segs_out: 4,
            segs_in: 0,
            data_segs_out: 0,
            data_segs_in: 0,
            lastsnd_ms: Some(12),
            lastrcv_ms: None,
            lastack_ms: None,
            delivered: 0,
            busy_ms: 10,
            rwnd_limited_ms: 5,
            sndbuf_limited_ms: 0,
            unacked: 0,
            retrans: 0,
            retrans_total: 2,
            lost: 0,
            sacked: 0,
            notsent: 0,
            rcv_ooopack: 0,
            snd_wnd: 65_536,
            rcv_wnd: 64_000,
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
            sockets.map(|s| s.state.0).collect::<Vec<_>>().join(" ")
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
        assert!(text.contains("\n\t cubic\n"), "{text}");
        answer.sockets[1].tcp = Some(figures());
        let text = table(&args(&["-ti"]), std::slice::from_ref(&answer), &Services::default());
        let wanted = "\n\t ts sack cubic wscale:8,7 rto:204.5 rtt:0.25/0.1 ato:40 mss:1448 pmtu:1500 \
                      rcvmss:536 advmss:1448 cwnd:10 bytes_sent:90 bytes_acked:80 segs_out:4 \
                      lastsnd:12 busy:10ms rwnd_limited:5ms(50.0%) retrans:0/2 minrtt:0.2 \
                      snd_wnd:65536 rcv_wnd:64000\n";
        assert!(text.contains(wanted), "{text}");
        assert!(text.contains(&format!(",pid={})) towpath=42", std::process::id())), "{text}");
        let back: Answer = serde_json::from_slice(&serde_json::to_vec(&answer).unwrap()).unwrap();
        assert_eq!(back, answer);
    }

    #[test]
    fn nothing_reaches_the_terminal_but_text() {
        let read = |answer: &Answer| read(42, Ok(serde_json::to_vec(answer).unwrap()));
        assert_eq!(read(&answer()).unwrap(), answer());
        let changed = |change: &dyn Fn(&mut Socket)| {
            let mut answer = answer();
            change(&mut answer.sockets[0]);
            read(&answer)
        };
        assert!(changed(&|s| s.state = Word("ESTAB\u{1b}[2J".into())).is_err());
        assert!(changed(&|s| s.state = Word("\u{9b}2J".into())).is_err());
        assert!(changed(&|s| s.congestion = Some(Word("two words".into()))).is_err());
        assert!(changed(&|s| s.state = Word("x".repeat(33))).is_err());
        assert!(read(&Answer { pid: 43, ..answer() }).is_err(), "another run's answer");
        let mut hostile = answer();
        hostile.program[0] = "a\u{1b}[2J\u{9b}2J\u{7f}\n".into();
        let text = json(std::slice::from_ref(&hostile)).unwrap();
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value[0]["program"], hostile.program[0]);
    }

    #[test]
    fn json_is_an_array_of_flat_objects() {
        let mut with_figures = answer();
        with_figures.sockets[1].tcp = Some(figures());
        let text = json(&[with_figures]).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value[1]["bytes_acked"], &value[1]["mss"]), (&80.into(), &1448.into()));
        assert_eq!(value[0].get("mss"), None, "a listener has none");
        assert_eq!(value[1]["pid"], 42);
        assert_eq!(value[1]["state"], "ESTAB");
        assert_eq!(value[1]["remote"], "10.0.2.2:40000");
        assert_eq!(value[2]["remote"], serde_json::Value::Null);
        assert_eq!(json(&[]).unwrap(), "[]\n");
    }
}
