//! Valid and invalid link descriptions.

use super::*;

fn parse(text: &str) -> Netem {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

fn p(number: f64) -> Probability {
    Probability::new(number).unwrap()
}

/// Returns message and column of an error.
fn refused(text: &str) -> (String, usize) {
    let error = text.parse::<Netem>().expect_err(text);
    (error.message().to_owned(), error.column())
}

#[test]
fn a_description_with_everything_gives_each_property() {
    let text = "delay 50ms 5ms 25% distribution uniform loss 1% 10% ecn duplicate 0.1% corrupt 2 \
                reorder 30% 50% gap 5 rate 20mbit limit 100 seed 7";
    let independent = |number| Chance::independent(p(number));
    let config = LinkConfig {
        rate: Some(20_000_000),
        delay_ns: 50_000_000,
        jitter_ns: 5_000_000,
        jitter_correlation: p(0.25),
        keeps_order: true,
        loss: Loss::Random(Chance { correlation: p(0.1), ..independent(0.01) }),
        ecn: true,
        duplicate: independent(0.001),
        corrupt: independent(0.02),
        reorder: Chance { correlation: p(0.5), ..independent(0.3) },
        gap: 5,
        mtu: None,
        limit: Some(100),
    };
    assert_eq!(parse(text), Netem { config, seed: Some(7) });
}

#[test]
fn properties_that_are_not_given_are_those_of_tc() {
    let Netem { config, seed } = parse("delay 10ms 2ms");
    let expected = LinkConfig {
        delay_ns: 10_000_000,
        jitter_ns: 2_000_000,
        limit: Some(1000),
        ..LinkConfig::default()
    };
    assert_eq!((config, seed), (expected, None));
}

#[test]
fn losses_are_random_or_in_bursts() {
    let loss = |text: &str| parse(text).config.loss;
    assert_eq!(loss("loss 5%"), loss("loss random 5%"));
    assert_eq!(loss("drop 5"), loss("loss 5%"));
    let model = |to_bad, to_good, in_bad, in_good| Loss::GilbertElliott {
        to_bad: p(to_bad),
        to_good: p(to_good),
        in_bad: p(in_bad),
        in_good: p(in_good),
    };
    assert_eq!(loss("loss gemodel 1% 25% 80% 0.5%"), model(0.01, 0.25, 0.8, 0.005));
    assert_eq!(loss("loss gemodel 1% 25%"), model(0.01, 0.25, 1., 0.));
    let Loss::GilbertElliott { to_bad, to_good, .. } = loss("loss gemodel 1%") else { panic!() };
    assert_eq!(to_good, to_bad.complement());
}

#[test]
fn units_are_those_of_tc() {
    let delay = |text: &str| parse(&format!("delay {text}")).config.delay_ns;
    let times = ["1s", "1.5secs", "20msec", "7us", "7", "250ns", ".5ms"].map(delay);
    let expected = [1_000_000_000, 1_500_000_000, 20_000_000, 7000, 7000, 250, 500_000];
    assert_eq!(times, expected);
    let rate = |text: &str| parse(&format!("rate {text}")).config.rate.unwrap();
    let rates = ["9600", "64kbit", "20Mbit", "1gbit", "2kbps", "1mibit", "1kibps", "5m"].map(rate);
    let expected = [9600, 64_000, 20_000_000, 1_000_000_000, 16_000, 1 << 20, 8 << 10, 5_000_000];
    assert_eq!(rates, expected);
}

#[test]
fn an_error_names_the_word_and_what_was_expected_and_points_at_it() {
    let error = "delay 50ms 5xs loss 1%".parse::<Netem>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "\"5xs\": expected a time, as 50ms\n  delay 50ms 5xs loss 1%\n             ^^^"
    );
    let cases = [
        ("", "nothing is given: expected delay, loss", 0),
        ("dealy 5ms", "\"dealy\": unknown word: expected delay, loss", 0),
        ("delay", "expected a time, as 50ms behind delay", 6),
        ("loss 1% delay fast", "\"fast\": expected a time", 14),
        ("delay 2h", "\"2h\": expected a time", 6),
        ("delay 2000000s", "\"2000000s\": expected a time", 6),
        ("delay 5ms 1ms 101%", "\"101%\": expected a percentage, 0% to 100%", 14),
        ("loss -1%", "\"-1%\": expected a percentage", 5),
        ("loss 1.2.3%", "\"1.2.3%\": expected a percentage", 5),
        ("loss state 1%", "\"state\": loss state is not supported", 5),
        ("loss gemodel", "expected a percentage, 0% to 100% behind gemodel", 13),
        ("delay 5ms 1ms distribution normal", "\"normal\": expected uniform", 27),
        ("delay 5ms distribution uniform", "\"distribution\": distribution needs a jitter", 10),
        ("delay 5ms distribution", "expected uniform", 23),
        ("distribution uniform", "\"distribution\": distribution stands behind a delay", 0),
        ("slot 800us", "\"slot\": slot is not supported", 0),
        ("rate 0", "\"0\": expected a rate, as 20mbit", 5),
        ("rate 20mbits", "\"20mbits\": expected a rate", 5),
        ("rate 20mbit 100", "\"100\": the overhead of a packet is not supported", 12),
        ("limit 0", "\"0\": expected a number of packets, 1 to 100000", 6),
        ("limit 1k", "\"1k\": expected a number of packets", 6),
        ("loss 1% loss 2%", "\"loss\": loss is given twice", 8),
        ("latency 1ms delay 2ms", "\"delay\": delay is given twice", 12),
        ("loss 1% reorder 25%", "\"reorder\": reorder needs a delay", 8),
        ("delay 1ms gap 5", "\"gap\": gap needs a chance", 10),
        ("ecn", "\"ecn\": ecn marks in the place of losses", 0),
        ("5ms", "\"5ms\": unknown word", 0),
        ("délai 5ms loss x", "\"délai\": unknown word", 0),
        ("delay 5ms λ", "\"λ\": unknown word", 10),
    ];
    for (text, message, column) in cases {
        let (told, at) = refused(text);
        assert!(told.starts_with(message) && at == column, "{text:?}: {told:?} at {at}");
    }
}
