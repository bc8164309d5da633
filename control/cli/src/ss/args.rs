//! The options of `towpath ss`: those of ss(8) that apply to sockets of towpath.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in texts of --help are no links")]

use clap::Args;

use crate::args::parse_user;

#[derive(Debug, Args)]
pub struct SsArgs {
    /// Print a JSON array
    #[arg(short, long, conflicts_with = "summary")]
    pub json: bool,
    /// TCP sockets
    #[arg(short, long)]
    pub tcp: bool,
    /// UDP sockets
    #[arg(short, long)]
    pub udp: bool,
    /// IPv4 sockets only
    #[arg(short = '4', long)]
    pub ipv4: bool,
    /// IPv6 sockets only; with -4 both
    #[arg(short = '6', long)]
    pub ipv6: bool,
    /// Listening sockets only
    #[arg(short, long)]
    pub listening: bool,
    /// All sockets, listening or not
    #[arg(short, long)]
    pub all: bool,
    /// Do not replace port numbers by service names
    #[arg(short, long)]
    pub numeric: bool,
    /// Show the processes that have a socket open
    #[arg(short, long)]
    pub processes: bool,
    /// Show the running timer, its remaining time, and the number of retransmissions
    #[arg(short, long)]
    pub options: bool,
    /// Show the user of the process, the socket's number, its device, and IPV6_V6ONLY
    #[arg(short, long)]
    pub extended: bool,
    /// Show the number of bytes in the buffers, and the sizes of the buffers
    #[arg(short, long)]
    pub memory: bool,
    /// Show TCP's state: congestion window, round-trip time, retransmissions
    #[arg(short, long)]
    pub info: bool,
    /// Show how many sockets there are in place of a list
    #[arg(short, long)]
    pub summary: bool,
    /// Leave out the line of headings
    #[arg(short = 'H', long)]
    pub no_header: bool,
    /// Print everything about a socket on one line
    #[arg(short = 'O', long)]
    pub oneline: bool,
    /// Show only the runs of this user, by name or number (default: your own, for root all); only
    /// root can see another user's runs
    #[arg(long, value_name = "USER", value_parser = parse_user)]
    pub user: Option<u32>,

    // Hidden options of ss(8) that `towpath ss` does not support. Users who try them get the
    // reason, and not "unexpected argument".
    #[arg(short = 'K', long, hide = true)]
    pub kill: bool,
    #[arg(short = 'E', long, hide = true)]
    pub events: bool,
    #[arg(short = 'r', long, hide = true)]
    pub resolve: bool,
    #[arg(short = 'x', long, hide = true)]
    pub unix: bool,
    #[arg(short = 'w', long, hide = true)]
    pub raw: bool,
    #[arg(short = '0', long, hide = true)]
    pub packet: bool,
    #[arg(short = 'S', long, hide = true)]
    pub sctp: bool,
    #[arg(short = 'Z', long, hide = true)]
    pub context: bool,

    /// Process id of one `towpath run` (default: all runs of this user), then a filter as in ss(8)
    ///
    /// [PID] [state STATE | exclude STATE]... [EXPRESSION]
    ///
    /// STATE is established, syn-sent, syn-recv, fin-wait-1, fin-wait-2, time-wait, closed,
    /// close-wait, last-ack, listening, closing, or a group of them: all, connected, synchronized,
    /// bucket, big.
    ///
    /// EXPRESSION: sport OP [:]PORT, dport OP [:]PORT, src ADDRESS[/LENGTH][:PORT], dst ADDRESS...,
    /// joined by and, or, not and parentheses (quoted, for the shell). OP is = != < > <= >= or eq
    /// ne lt gt le ge. If two terms follow each other without an operator, both must be true.
    #[arg(value_name = "PID|FILTER")]
    pub words: Vec<String>,
}

impl SsArgs {
    /// Returns the reason why `towpath ss` does not support an option of ss(8), if such an option
    /// was given.
    pub fn refusal(&self) -> Option<&'static str> {
        let kernel =
            "a run has TCP, UDP and ping sockets; all others are the kernel's, and `ss` shows them";
        [
            (self.kill, "-K: sockets of a run cannot be ended from outside; end the program"),
            (
                self.events,
                "-E: a run does not tell when sockets end; `towpath run --pcap` records why",
            ),
            (self.resolve, "-r: addresses are not resolved; the names would be the host's"),
            (self.context, "-Z: sockets of a run have no security context"),
            (self.unix || self.raw || self.packet || self.sctp, kernel),
        ]
        .into_iter()
        .find_map(|(given, why)| given.then_some(why))
    }

    /// Splits the arguments into the process id of the run and the words of the filter.
    pub fn pid_and_filter(&self) -> (Option<u32>, &[String]) {
        match self.words.split_first() {
            Some((first, rest)) if first.bytes().all(|byte| byte.is_ascii_digit()) => {
                // A number too large for a process id matches no run.
                (Some(first.parse().unwrap_or(u32::MAX)), rest)
            }
            _ => (None, &self.words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::args;

    #[test]
    fn what_ss_has_and_this_has_not_is_refused_with_the_reason() {
        for option in ["-K", "-E", "-r", "-x", "-w", "-0", "-S", "-Z"] {
            assert!(args(&[option]).refusal().is_some(), "{option}");
        }
        assert_eq!(args(&["-tulanpoemis46HO"]).refusal(), None);
    }
}
