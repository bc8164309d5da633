//! Sample data for tests of `towpath ss`: options, and an answer with a listener, a connection and
//! a UDP socket.

use clap::{Args, FromArgMatches};
use towpath_engine::TcpFigures;

use super::args::SsArgs;
use towpath_model::{Answer, Proto, ShownSocket, Word};

/// Parses options as they are given to `towpath ss`.
pub(super) fn args(words: &[&str]) -> SsArgs {
    let command = SsArgs::augment_args(clap::Command::new("ss"));
    let matches = command.try_get_matches_from(["ss"].iter().chain(words)).unwrap();
    SsArgs::from_arg_matches(&matches).unwrap()
}

pub(super) fn answer() -> Answer {
    Answer {
        owner: rustix::process::geteuid().as_raw(),
        pid: 42,
        program: vec!["/usr/bin/python3".into(), "x.py".into()],
        sockets: vec![
            socket(Proto::Tcp, "LISTEN", "0.0.0.0:80", None),
            socket(Proto::Tcp, "ESTAB", "10.0.2.15:80", Some("10.0.2.2:40000")),
            socket(Proto::Udp, "UNCONN", "[::]:53", None),
        ],
    }
}

pub(crate) fn socket(
    proto: Proto,
    state: &'static str,
    local: &str,
    remote: Option<&str>,
) -> ShownSocket {
    ShownSocket {
        proto,
        state: Word::known(state),
        recv_q: 1,
        send_q: 20,
        local: Some(local.parse().unwrap()),
        remote: remote.map(|p| p.parse().unwrap()),
        cwnd: 0,
        rtt_us: 0,
        congestion: None,
        tcp: None,
        flow: None,
        holders: Vec::new(),
        recv_buffer: 65_536,
        send_buffer: 16_384,
        v6_only: false,
        device: None,
        slot: Some(10),
    }
}

/// Returns sample TCP state, with some fields zero or `None`.
pub(crate) fn figures() -> TcpFigures {
    TcpFigures {
        ts: true,
        sack: true,
        ecn: true,
        ecnseen: false,
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
        pacing_rate: None,
        pacing_rate_max: None,
        congestion_values: None,
        delivered: 0,
        delivered_ce: 0,
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
