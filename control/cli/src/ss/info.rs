//! Formats the details that `ss -i`, `-m`, `-o` and `-e` show.

use towpath_engine::{CongestionValues, TcpFigures};

use towpath_model::ShownSocket;

/// Formats the state of a TCP connection as `ss -i` does.
pub(super) fn info_line(socket: &ShownSocket) -> Option<String> {
    let congestion = socket.congestion.as_ref()?;
    let mut out = InfoLine(String::new());
    let tcp = socket.tcp.as_ref();
    out.flag("ts", tcp.is_some_and(|tcp| tcp.ts));
    out.flag("sack", tcp.is_some_and(|tcp| tcp.sack));
    out.flag("ecn", tcp.is_some_and(|tcp| tcp.ecn));
    out.flag("ecnseen", tcp.is_some_and(|tcp| tcp.ecnseen));
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
    if let Some(values) = &tcp.congestion_values {
        out.flag(&congestion_values(values), true);
    }
    if let Some(rate) = tcp.pacing_rate {
        let limit = tcp.pacing_rate_max.map(|limit| format!("/{}", bits_per_second(limit.get())));
        let rate = bits_per_second(rate.get());
        out.flag(&format!("pacing_rate {rate}{}", limit.unwrap_or_default()), true);
    }
    out.unless_0("delivered", tcp.delivered.into());
    out.unless_0("delivered_ce", tcp.delivered_ce.into());
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

/// Formats the values of a congestion control algorithm, as `ss` does for BBR and DCTCP.
fn congestion_values(values: &CongestionValues) -> String {
    match *values {
        CongestionValues::Bbr { bw, mrtt_us, pacing_gain, cwnd_gain } => {
            let gain = |percent: u32| f64::from(percent) / 100.0;
            format!(
                "bbr:(bw:{},mrtt:{},pacing_gain:{},cwnd_gain:{})",
                bits_per_second(bw),
                ms(mrtt_us),
                gain(pacing_gain),
                gain(cwnd_gain)
            )
        }
        CongestionValues::Dctcp { alpha, ab_ecn, ab_tot } => {
            format!("dctcp:(alpha:{alpha},ab_ecn:{ab_ecn},ab_tot:{ab_tot})")
        }
        CongestionValues::Vegas { basertt_us, minrtt_us } => {
            format!("vegas:(basertt:{},minrtt:{})", ms(basertt_us), ms(minrtt_us))
        }
    }
}

/// Formats a rate as `ss` does: in bits per second with three digits. `bytes` is in bytes per
/// second.
fn bits_per_second(bytes: u64) -> String {
    let (mut value, mut units) = (bytes as f64 * 8., ["", "k", "M", "G", "T"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    while value >= 999.5 {
        let Some(larger) = units.next() else { break };
        (value, unit) = (value / 1000., larger);
    }
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    let text = format!("{value:.digits$}");
    let text = if digits > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}bps")
}

fn ms(us: u32) -> f64 {
    f64::from(us) / 1000.0
}

/// Line of words that are separated by spaces.
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

/// Formats buffers as `ss -m` does: unread bytes, receive buffer size, unacknowledged bytes, send
/// buffer size.
pub(super) fn memory(socket: &ShownSocket) -> String {
    let is_listener = socket.state.as_str() == "LISTEN";
    let (read, sent) = if is_listener { (0, 0) } else { (socket.recv_q, socket.send_q) };
    format!("skmem:(r{read},rb{},w{sent},tb{})", socket.recv_buffer, socket.send_buffer)
}

/// Formats the running TCP timer as `ss -o` does: name, remaining time, and number of backoffs.
pub(super) fn timer(socket: &ShownSocket) -> Option<String> {
    let tcp = socket.tcp.as_ref()?;
    // Accept only known timer names, because the answer may come from a run of another user.
    let known = ["on", "persist", "keepalive", "timewait"];
    let name = known.into_iter().find(|name| tcp.timer.as_deref() == Some(*name))?;
    Some(format!("timer:({name},{},{})", left(tcp.timer_ms), tcp.backoff))
}

/// Formats a time in ms in the units of ss: `119min`, `1.2sec`, `200ms`.
fn left(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms}ms"),
        1000..10_000 => format!("{}.{:03}sec", ms / 1000, ms % 1000).replace("000sec", "0sec"),
        10_000..60_000 => format!("{}sec", ms / 1000),
        _ => {
            let (minutes, seconds) = (ms / 60_000, ms / 1000 % 60);
            let rest = if seconds > 0 { format!("{seconds}sec") } else { String::new() };
            format!("{minutes}min{rest}")
        }
    }
}

/// Formats details as `ss -e` does: the owner, the socket's number, and options of bind(2).
pub(super) fn extended(socket: &ShownSocket) -> String {
    use std::os::unix::fs::MetadataExt;
    let owner = |pid: &u32| std::fs::metadata(format!("/proc/{pid}")).ok().map(|it| it.uid());
    let mut out = InfoLine(String::new());
    if let Some(uid) = socket.holders.iter().find_map(owner) {
        out.show("uid", uid);
    }
    if let Some(slot) = socket.slot {
        out.show("sk", format_args!("{slot:x}"));
    }
    if let Some(device) = &socket.device {
        out.show("dev", device.as_str());
    }
    if matches!(socket.local, Some(std::net::SocketAddr::V6(_))) {
        out.show("v6only", u8::from(socket.v6_only));
    }
    out.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_algorithms_in_the_words_of_ss() {
        let bbr = CongestionValues::Bbr {
            bw: 1_250_000,
            mrtt_us: 20_500,
            pacing_gain: 277,
            cwnd_gain: 200,
        };
        let text = "bbr:(bw:10Mbps,mrtt:20.5,pacing_gain:2.77,cwnd_gain:2)";
        assert_eq!(congestion_values(&bbr), text);
        let dctcp = CongestionValues::Dctcp { alpha: 1024, ab_ecn: 5, ab_tot: 7 };
        assert_eq!(congestion_values(&dctcp), "dctcp:(alpha:1024,ab_ecn:5,ab_tot:7)");
        let vegas = CongestionValues::Vegas { basertt_us: 1000, minrtt_us: 1500 };
        assert_eq!(congestion_values(&vegas), "vegas:(basertt:1,minrtt:1.5)");
    }

    /// Tests that rates are shown in bits, as in iproute2.
    #[test]
    fn rates_in_the_words_of_ss() {
        let rows = [
            (1, "8bps"),
            (500, "4kbps"),
            (12_500, "100kbps"),
            (124_990, "1Mbps"),
            (1_234_567, "9.88Mbps"),
            (2_500_000, "20Mbps"),
            (1_500_000_000, "12Gbps"),
            (u64::MAX, "147573953Tbps"),
        ];
        for (bytes, text) in rows {
            assert_eq!(bits_per_second(bytes), text, "{bytes}");
        }
    }
}
