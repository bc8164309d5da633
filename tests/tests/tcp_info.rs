//! TCP_INFO of the same exchange on the kernel and on Towpath, field by field. The peer is the
//! kernel's TCP in both cases.

use std::collections::BTreeMap;

use towpath_tests::veth::Veth;
use towpath_tests::{PATIENCE, Scratch, program};

/// Fields that may differ, with the reason. All other fields must be equal after each step.
const MAY_DIFFER: &[(&str, &str)] = &[
    ("rto", "follows measured times; Linux rounds it to ticks"),
    ("ato", "Linux adapts it to the peer, in ticks"),
    ("rtt rttvar min_rtt rcv_rtt", "measured times"),
    ("last_data_sent last_data_recv last_ack_recv", "times; of a new socket since the boot"),
    ("busy_time rwnd_limited sndbuf_limited", "times; Linux counts in ticks"),
    ("pacing_rate delivery_rate", "bytes per second"),
    ("flags", "tcpi_delivery_rate_app_limited belongs to the sample of delivery_rate"),
    ("snd_cwnd", "bytes, shown as whole segments; Linux counts a short segment as one"),
    ("rcv_ssthresh rcv_space rcv_wnd snd_wnd", "receive buffers have other sizes and steps"),
    ("rcv_mss", "average of segments that the device merged"),
    ("segs_out segs_in", "both stacks may delay ACKs"),
];

/// Values by step and field.
type Values = BTreeMap<(String, String), String>;

/// Runs the exchange with `role` on the stack under test, and returns what that end printed.
fn exchange(lab: &Veth, role: &str, addresses: (&str, &str), is_ours: bool) -> Values {
    let (here, there) = addresses;
    let folder = Scratch::new();
    let (script, path) = (program("tcp_info.py"), folder.file("met"));
    let (peer, server) = match role {
        "server" => ("client", there),
        _ => ("server", here),
    };
    let line = |role| ["python3", "-B", script.as_str(), role, server, path.as_str()];
    let subject = match is_ours {
        true => {
            let cidr = format!("{there}/{}", if there.contains(':') { 64 } else { 24 });
            let options = ["--packet", "vb", "--address", &cidr, "--congestion", "reno"];
            lab.run(&options, &line(role))
        }
        false => lab.there.spawn(&line(role)),
    };
    let peer = lab.here.spawn(&line(peer));
    let output = subject.wait(PATIENCE).ok().stdout;
    peer.wait(PATIENCE).ok();
    let value = |line: &str| {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        let [step, field, value] = <[String; 3]>::try_from(words).expect("three words");
        ((step, field), value)
    };
    output.lines().map(value).collect()
}

/// Repeats the exchange until nothing was retransmitted. A busy machine may delay a segment by more
/// than a timeout, and the exchanges of both stacks are not the same then.
fn exchange_without_loss(lab: &Veth, role: &str, addresses: (&str, &str), is_ours: bool) -> Values {
    for _ in 0..10 {
        let values = exchange(lab, role, addresses, is_ours);
        let is_resent = |((_, field), value): (&(String, String), &String)| {
            field == "total_retrans" && value != "0"
        };
        if !values.iter().any(is_resent) {
            return values;
        }
    }
    panic!("each exchange had a retransmission");
}

fn may_differ(field: &str) -> bool {
    MAY_DIFFER.iter().any(|(fields, _)| fields.split(' ').any(|it| it == field))
}

fn compare(role: &str, steps: usize) {
    let Some(lab) = Veth::new(1500) else { return };
    for ns in [&lab.here, &lab.there] {
        ns.shell(
            "sysctl -qw net.ipv4.tcp_congestion_control=reno net.ipv4.tcp_no_metrics_save=1 \
             net.ipv4.tcp_rmem='4096 131072 4194304'",
        )
        .ok();
    }
    for (here, kernel, ours) in
        [("10.1.0.1", "10.1.0.9", "10.1.0.2"), ("fd00:1::1", "fd00:1::9", "fd00:1::2")]
    {
        let kernel = exchange_without_loss(&lab, role, (here, kernel), false);
        let ours = exchange_without_loss(&lab, role, (here, ours), true);
        assert_eq!((kernel.len(), ours.len()), (59 * steps, 59 * steps));
        let differing: Vec<_> = kernel
            .iter()
            .filter(|((_, field), _)| !may_differ(field))
            .map(|(at, value)| (at, value, &ours[at]))
            .filter(|(_, kernel, ours)| kernel != ours)
            .collect();
        assert!(differing.is_empty(), "{role} of {here}: the kernel's and ours {differing:#?}");
    }
}

#[test]
fn tcp_info_of_a_server_equals_the_kernels() {
    compare("server", 6);
}

#[test]
fn tcp_info_of_a_client_equals_the_kernels() {
    compare("client", 6);
}
