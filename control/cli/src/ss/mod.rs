//! `towpath ss`: the sockets of running stacks, in the columns and spelling of ss(8).

mod args;
mod filter;
mod info;
mod services;
mod table;

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use towpath_engine::TcpFigures;

use crate::error::{ExitCode, Failure};
use crate::instance::{self, NoAnswer};
use crate::messages;

pub use args::SsArgs;
use filter::Filter;
use services::Services;
use table::{summary, table};

/// What an instance answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Process id of `towpath run`.
    pub pid: u32,
    /// PROGRAM and its arguments.
    pub program: Vec<String>,
    /// All sockets of the run.
    pub sockets: Vec<Socket>,
}

/// One socket, as `towpath_engine::SocketEntry` is written in JSON. Also what `towpath ss -j` prints,
/// with the instance in front.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Socket {
    /// Its protocol.
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
    /// Congestion control; None where there is none.
    pub congestion: Option<Word>,
    /// What TCP knows of a connection.
    #[serde(flatten)]
    pub tcp: Option<TcpFigures>,
    /// Processes that hold it; at most [`towpath_engine::HOLDERS_SHOWN`].
    pub holders: Vec<u32>,
    /// Bytes that its receive buffer may hold.
    pub recv_buffer: u32,
    /// Bytes that its send buffer may hold.
    pub send_buffer: u32,
    /// IPV6_V6ONLY.
    pub v6_only: bool,
    /// SO_BINDTODEVICE.
    pub device: Option<Word>,
    /// None: it is half-open or in TIME-WAIT, and no socket of a program.
    pub slot: Option<u32>,
}

/// Which protocol a socket is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Proto {
    /// RFC 9293.
    Tcp,
    /// RFC 768.
    Udp,
    /// Ping sockets, of ICMP and ICMPv6.
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
    /// The word.
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
    let wrong = |text: String| Failure::error(ExitCode::Usage, text);
    if let Some(why) = args.refusal() {
        return Err(wrong(why.to_owned()));
    }
    let (pid, filter) = args.pid_and_filter();
    let services = Services::of_host();
    let filter = Filter::new(args, filter, &services).map_err(|error| wrong(error.to_string()))?;
    let (mut answers, mut faults) = (Vec::new(), Vec::new());
    for (pid, told) in instance::ask_all(pid) {
        match read(pid, told) {
            Ok(answer) => answers.push(answer),
            Err(why) => faults.push(format!("the run with process id {pid} {why}")),
        }
    }
    if let (Some(pid), true) = (pid, answers.is_empty()) {
        if !faults.is_empty() {
            bail!("{}", faults.join("; "));
        }
        return Err(wrong(format!("no `towpath run` of this user has process id {pid}")));
    }
    // One that does not answer, or answers nonsense, is no reason to show nothing of the others.
    faults.iter().for_each(|fault| messages::error(fault));
    if args.summary {
        return crate::output::write(summary(&answers).as_bytes());
    }
    for answer in &mut answers {
        answer.sockets.retain(|socket| filter.takes(socket));
    }
    let names = if args.numeric { Services::default() } else { services };
    let text = if args.json { json(&answers)? } else { table(args, &answers, &names) };
    crate::output::write(text.as_bytes())
}

/// `Err`: the rest of a sentence that begins with the run.
fn read(pid: u32, told: Result<Vec<u8>, NoAnswer>) -> Result<Answer, String> {
    let bytes = told.map_err(|why| why.to_string())?;
    let answer = serde_json::from_slice(&bytes).ok().filter(|answer: &Answer| answer.pid == pid);
    answer.ok_or_else(|| "gave no readable answer; is it another version?".to_owned())
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

#[cfg(test)]
mod tests {
    use towpath_engine::TcpFigures;

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
            holders: Vec::new(),
            recv_buffer: 65_536,
            send_buffer: 16_384,
            v6_only: false,
            device: None,
            slot: Some(10),
        }
    }

    pub(super) fn answer() -> Answer {
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
            timer: Some("keepalive".into()),
            timer_ms: 7_140_000,
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

    pub(super) fn args(words: &[&str]) -> SsArgs {
        use clap::Parser;
        match crate::args::Cli::parse_from(["towpath", "ss"].iter().chain(words)).command {
            crate::args::Command::Ss(args) => args,
            _ => unreachable!("ss was given"),
        }
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
        // One that is gone is not named.
        connection.holders = vec![u32::MAX, std::process::id()];
        let text = table(&args(&["-ti"]), std::slice::from_ref(&answer), &Services::default());
        assert!(text.contains("\n\t cubic\n"), "{text}");
        answer.sockets[1].tcp = Some(figures());
        let text = table(&args(&["-tip"]), std::slice::from_ref(&answer), &Services::default());
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
        answer.sockets[2].device = Some("eth0".into());
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

    #[test]
    fn what_ss_has_and_this_has_not_is_refused_with_the_reason() {
        for option in ["-K", "-E", "-r", "-x", "-w", "-0", "-S", "-Z"] {
            assert!(args(&[option]).refusal().is_some(), "{option}");
        }
        assert_eq!(args(&["-tulanpoemis46HO"]).refusal(), None);
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
