//! Measurements by `lab/load`, which every stack supports, because its servers only echo, discard
//! and generate bytes.

use serde_json::Value;

use super::cases::{Case, Client, Group, Reading, Serves};
use crate::figures::Spread;

const REQUESTS: &[Reading] =
    &[Reading { which: "", unit: "requests/s", read: |text| field(text, "rate") }, P50, P99];
const AVERAGE: Reading =
    Reading { which: ", average", unit: "µs", read: |text| field(text, "average") };
const P50: Reading = Reading { which: ", p50", unit: "µs", read: |text| field(text, "p50") };
const P99: Reading = Reading { which: ", p99", unit: "µs", read: |text| field(text, "p99") };

const fn load(
    group: Group,
    name: &'static str,
    client: &'static str,
    readings: &'static [Reading],
) -> Case {
    Case { group, name, serves: Serves::Load, client: Client::Load(client), link: None, readings }
}

/// Requests and responses of equal size on some connections.
macro_rules! requests {
    ($size:literal, $bytes:literal, $count:literal, $connections:literal) => {
        load(
            Group::Rr,
            concat!($size, " and back, ", $count, $connections),
            concat!("ask HOST ", $count, " ", $bytes, " SECONDS"),
            REQUESTS,
        )
    };
}

/// Bulk transfer in one or both directions, with some flows each.
macro_rules! bulk {
    ($name:literal, $way:literal, $flows:literal) => {
        load(
            Group::Bulk,
            $name,
            concat!("bulk HOST ", $way, " ", $flows, " SECONDS"),
            &[Reading {
                which: "",
                unit: "Gbit/s",
                read: |text| field(text, $way).map(|bits| bits / 1e9),
            }],
        )
    };
}

const WINDOW_1: &[Reading] = &[P50, P99];
const WINDOW_32: &[Reading] =
    &[Reading { which: "", unit: "datagrams/s", read: |text| field(text, "rate") }];
const RECEIVED: &[Reading] =
    &[Reading { which: "", unit: "received/s", read: |text| field(text, "received") }];

pub const CASES: &[Case] = &[
    requests!("1 B", "1", "1", " connection"),
    requests!("1 B", "1", "100", " connections"),
    requests!("1 B", "1", "1000", " connections"),
    requests!("100 B", "100", "1", " connection"),
    requests!("100 B", "100", "100", " connections"),
    requests!("100 B", "100", "1000", " connections"),
    requests!("1 KiB", "1024", "1", " connection"),
    requests!("1 KiB", "1024", "100", " connections"),
    requests!("1 KiB", "1024", "1000", " connections"),
    requests!("16 KiB", "16384", "1", " connection"),
    requests!("16 KiB", "16384", "100", " connections"),
    requests!("16 KiB", "16384", "1000", " connections"),
    load(
        Group::Churn,
        "connect, 100 B and back, close, 1 client",
        "churn HOST 1 100 SECONDS",
        &[Reading { which: "", unit: "connections/s", read: |text| field(text, "rate") }, P50, P99],
    ),
    load(
        Group::Churn,
        "connect, 100 B and back, close, 64 clients",
        "churn HOST 64 100 SECONDS",
        &[Reading { which: "", unit: "connections/s", read: |text| field(text, "rate") }, P50, P99],
    ),
    load(
        Group::Users,
        "1000 users, 6 B each 100 ms",
        "users HOST 1000 6 100 SECONDS",
        &[AVERAGE, P99],
    ),
    load(
        Group::Users,
        "10000 connections, 6 B each second",
        // Take two seconds, so that each connection gets its turn.
        "users HOST 10000 6 1000 2",
        &[P50, P99],
    ),
    bulk!("bulk in, 1 flow", "in", "1"),
    bulk!("bulk in, 8 flows", "in", "8"),
    bulk!("bulk out, 1 flow", "out", "1"),
    bulk!("bulk out, 8 flows", "out", "8"),
    bulk!("bulk in and out, 1 flow each", "both", "1"),
    bulk!("bulk in and out, 8 flows each", "both", "8"),
    load(Group::Udp, "UDP, 64 B and back", "echo HOST 1 64 SECONDS", WINDOW_1),
    load(Group::Udp, "UDP, 1400 B and back", "echo HOST 1 1400 SECONDS", WINDOW_1),
    load(Group::Udp, "UDP, 64 B and back, 32 under way", "echo HOST 32 64 SECONDS", WINDOW_32),
    load(Group::Udp, "UDP, 1400 B and back, 32 under way", "echo HOST 32 1400 SECONDS", WINDOW_32),
    load(Group::Udp, "UDP, 64 B one way", "cast HOST 64 SECONDS", RECEIVED),
    load(Group::Udp, "UDP, 1400 B one way", "cast HOST 1400 SECONDS", RECEIVED),
];

/// Returns the distribution of times that a client has printed.
pub fn spread(text: &str) -> Option<Spread> {
    let mut said = serde_json::from_str::<Value>(text).ok()?;
    serde_json::from_value(said["spread"].take()).ok()
}

fn field(text: &str, name: &str) -> Option<f64> {
    serde_json::from_str::<Value>(text).ok()?[name].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_read_and_what_is_not_there_is_no_figure() {
        let said = r#"{"rate": 12.5, "p50": null}"#;
        assert_eq!(field(said, "rate"), Some(12.5));
        assert_eq!(field(said, "p50"), None);
        assert_eq!(field(said, "p99"), None);
        assert_eq!(field("connect: refused", "rate"), None);
        assert_eq!(spread(said), None);
        let said = r#"{"spread": [[0.5, 12.0], [1.0, 15.5]]}"#;
        assert_eq!(spread(said), Some(Spread(vec![(0.5, 12.), (1., 15.5)])));
    }

    #[test]
    fn rows_have_names_of_their_own_and_clients_that_know_where_to_ask() {
        let mut names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
        for case in CASES {
            let Client::Load(line) = case.client else { panic!("{}", case.name) };
            assert!(line.contains(" HOST "), "{line}");
            assert!(!case.readings.is_empty() && case.group != Group::All);
        }
    }
}
