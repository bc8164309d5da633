//! Bulk transfer over a link with delay and loss.

use super::cases::{Case, Client, Group, Place, Reading, Serves, gbits, iperf, iperf_server};
use super::link::Link;

const READINGS: &[Reading] =
    &[Reading { which: "", unit: "Mbit/s", read: |text| gbits(text).map(|gbits| gbits * 1e3) }];

/// Returns a bulk transfer of one flow with a delay of 10 ms in each direction, hence a round trip
/// of 20 ms.
const fn bulk(
    name: &'static str,
    client: fn(&Place<'_>) -> Vec<String>,
    loss_percent: f64,
) -> Case {
    Case {
        group: Group::Loss,
        name,
        serves: Serves::Program(iperf_server),
        client: Client::Program(client),
        link: Some(Link { delay_ms: 10, loss_percent }),
        readings: READINGS,
    }
}

pub const CASES: &[Case] = &[
    bulk("20 ms, nothing lost, to the program", |at| iperf(at, &[]), 0.),
    bulk("20 ms, 0.1 % lost, to the program", |at| iperf(at, &[]), 0.1),
    bulk("20 ms, 1 % lost, to the program", |at| iperf(at, &[]), 1.),
    bulk("20 ms, 5 % lost, to the program", |at| iperf(at, &[]), 5.),
    bulk("20 ms, nothing lost, from the program", |at| iperf(at, &["-R"]), 0.),
    bulk("20 ms, 0.1 % lost, from the program", |at| iperf(at, &["-R"]), 0.1),
    bulk("20 ms, 1 % lost, from the program", |at| iperf(at, &["-R"]), 1.),
    bulk("20 ms, 5 % lost, from the program", |at| iperf(at, &["-R"]), 5.),
    bulk("20 ms, 0.1 % lost, BBR, to the program", |at| iperf(at, &["-C", "bbr"]), 0.1),
    bulk("20 ms, 1 % lost, BBR, to the program", |at| iperf(at, &["-C", "bbr"]), 1.),
    bulk("20 ms, 5 % lost, BBR, to the program", |at| iperf(at, &["-C", "bbr"]), 5.),
    bulk("20 ms, 0.1 % lost, BBR, from the program", |at| iperf(at, &["-C", "bbr", "-R"]), 0.1),
    bulk("20 ms, 1 % lost, BBR, from the program", |at| iperf(at, &["-C", "bbr", "-R"]), 1.),
    bulk("20 ms, 5 % lost, BBR, from the program", |at| iperf(at, &["-C", "bbr", "-R"]), 5.),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_what_arrived_in_mbit() {
        let said = r#"{"end": {"sum_sent": {"bits_per_second": 9e6},
                               "sum_received": {"bits_per_second": 12.5e6}}}"#;
        assert_eq!((READINGS[0].read)(said), Some(12.5));
        assert_eq!((READINGS[0].read)(r#"{"error": "unable to connect"}"#), None);
    }

    #[test]
    fn clients_run_for_as_long_as_it_takes_to_lose_some() {
        let place = Place {
            host: "10.0.0.1",
            seconds: CASES[0].seconds(),
            scratch: "/nowhere".as_ref(),
            crowd: "/nowhere".as_ref(),
            load: "/nowhere".as_ref(),
        };
        let line = CASES[4].client(&place).join(" ");
        assert!(
            line.contains("-C cubic") && line.contains("-t 8") && line.ends_with("-R"),
            "{line}"
        );
        // iperf3 takes the last algorithm.
        let line = CASES[13].client(&place).join(" ");
        assert!(line.ends_with("-C bbr -R"), "{line}");
    }
}
