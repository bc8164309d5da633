//! Formats the figures as text. The lines of the previous load tester come first, followed by
//! further figures.

use std::fmt::Write as _;
use std::time::Duration;

use crate::{Ended, FellBehind, Histogram, Report};

use super::compare::Comparison;
use super::figures::{self, QUANTILES, bits, bytes, counted, percent, rate, time};
use super::outcome::{Document, Outcome};
use super::search::Search;

/// Formats the whole document as text.
pub fn of(document: &Document) -> String {
    let mut text = match &document.outcome {
        Outcome::Run { run } => report(run, document.on),
        Outcome::Comparison { comparison } => compared(comparison, document.on),
        Outcome::Search { search } => searched(search, document.on),
    };
    for it in &document.assertions {
        let word = if it.holds { "kept" } else { "MISSED" };
        let _ = writeln!(text, "\nBound {}: {word}, the figure is {}", it.bound, it.found);
    }
    text
}

/// Formats the figures of one run.
fn report(report: &Report, on: &str) -> String {
    let mut text = String::from("=== Load Test Complete ===\n");
    if !report.plan.shape.is_stream() {
        old_words(&mut text, report);
    }
    text.push('\n');
    setting(&mut text, report, on);
    traffic(&mut text, report);
    if report.generator.unsent > 0 {
        entry(&mut text, "Unsent", &figures::unsent(report));
    }
    text.push('\n');
    times(&mut text, report);
    failures(&mut text, report);
    if !report.duration.is_zero() {
        generator(&mut text, report);
    }
    text
}

/// Formats the lines of the previous load tester, which scripts parse.
fn old_words(text: &mut String, report: &Report) {
    let times = figures::main_times(report);
    let _ = writeln!(text, "Sent:     {}", report.sent);
    let _ = writeln!(text, "Received: {}", report.received);
    let _ = writeln!(text, "Failures: {}", report.failures.total());
    if times.is_empty() {
        return;
    }
    let _ = writeln!(text, "Avg RTT:  {}", time(times.mean()));
    for (name, share) in [("p90:", 0.9), ("p95:", 0.95), ("p99:", 0.99)] {
        let _ = writeln!(text, "{name}      {}", time(times.quantile(share)));
    }
}

/// Formats the server, the protocol, the traffic pattern and the arrivals of a run.
fn setting(text: &mut String, report: &Report, on: &str) {
    let plan = &report.plan;
    let place = if on == "kernel" { String::new() } else { format!(" from Towpath ({on})") };
    let name = &plan.target.name;
    let address = report.address.to_string();
    let address = if *name == address { String::new() } else { format!(" ({address})") };
    let _ = writeln!(text, "Server    {name}{address} by {}{place}", figures::protocol(plan));
    let _ = writeln!(text, "Load      {}: {}", figures::arrivals(plan), figures::pattern(plan));
    let warmup = if plan.warmup.is_zero() {
        String::new()
    } else {
        format!(", after {} of warm-up", time(plan.warmup))
    };
    let ended = match report.ended {
        Ended::Stopped => format!(" of {}: stopped", figures::planned(plan)),
        Ended::NoConnection => ": no user had a connection".to_owned(),
        _ => String::new(),
    };
    let _ = writeln!(text, "Measured  {}{ended}{warmup}", time(report.duration));
}

/// Formats the rates and the connections of a run.
fn traffic(text: &mut String, report: &Report) {
    let (out, back) = (bits(report.bits_sent()), bits(report.bits_received()));
    if report.plan.shape.is_stream() {
        let _ = writeln!(text, "Traffic   {out} sent, {back} received");
        let (sent, received) = (bytes(report.bytes_sent), bytes(report.bytes_received));
        let _ = writeln!(text, "          {sent} sent, {received} received");
    } else {
        let answers = rate(report.rate());
        let _ = writeln!(text, "Traffic   {answers} answered, {out} sent, {back} received");
    }
    let users = report.plan.users;
    let _ = write!(text, "Users     {} of {users} connected at the end", report.connected);
    if report.reconnects > 0 {
        let _ = write!(text, ", {} connected again", report.reconnects);
    }
    if report.closed_idle > 0 {
        let _ = write!(text, ", {} closed while idle", report.closed_idle);
    }
    text.push('\n');
    if figures::closes_after_answers(report) {
        entry(text, "", figures::CLOSES);
    }
}

/// Formats the table with the times of a run.
fn times(text: &mut String, report: &Report) {
    let mut rows: Vec<(&str, &Histogram)> = Vec::new();
    if figures::is_open(&report.plan) {
        rows.push(("Response", &report.response));
    }
    rows.extend([("Service", &report.service), ("Connect", &report.connect)]);
    if !report.lost.is_empty() {
        rows.push(("Lost after", &report.lost));
    }
    rows.retain(|(_, times)| !times.is_empty());
    if rows.is_empty() {
        return;
    }
    let _ = write!(text, "{:<10}{:>9}{:>8}{:>8}", "", "count", "min", "avg");
    for (name, _) in QUANTILES {
        let _ = write!(text, "{name:>8}");
    }
    text.push('\n');
    for (name, times) in rows {
        let (min, mean) = (time(times.min()), time(times.mean()));
        let _ = write!(text, "{name:<10}{:>9}{min:>8}{mean:>8}", times.count());
        for (_, share) in QUANTILES {
            let _ = write!(text, "{:>8}", time(quantile(times, share)));
        }
        text.push('\n');
    }
    if figures::is_open(&report.plan) {
        text.push_str(
            "Response times count from when a request was due, service times from when it was\n\
             sent. Avg RTT and the percentiles at the top are response times.\n",
        );
    }
}

/// Returns a quantile of the times, limited to the maximum time. The end of the quantile's bucket
/// may exceed the maximum.
pub fn quantile(times: &Histogram, share: f64) -> Duration {
    times.quantile(share).min(times.max())
}

/// Formats the failures of each kind, with their cause and an example.
fn failures(text: &mut String, report: &Report) {
    if report.failures.is_empty() {
        return;
    }
    let _ = writeln!(text, "\nFailures");
    for it in report.failures.iter() {
        let words = format!("{}: {}", it.kind, figures::explanation(it.kind));
        entry(text, &it.count.to_string(), &words);
        let _ = writeln!(text, "{INDENT}first: {}", printable(&it.example));
    }
    if report.late_answers > 0 {
        entry(text, &report.late_answers.to_string(), "answers came late or twice");
    }
}

/// Formats the influence of the tester itself on the figures.
fn generator(text: &mut String, report: &Report) {
    let generator = &report.generator;
    text.push('\n');
    let kept = match &report.fell_behind {
        Some(mark) => behind(mark),
        None if figures::is_tester_limit(report) => figures::tester_limit(report),
        None if generator.lateness.is_empty() => "had no schedule to keep".to_owned(),
        None => {
            let lateness = time(generator.lateness.quantile(0.99));
            format!("kept its schedule: 99 % of the requests left at most {lateness} late")
        }
    };
    entry(text, "Tester", &kept);
    let used = format!(
        "busiest thread busy {}, CPU {}, memory {}",
        percent(generator.busy),
        time(report.cpu),
        bytes(report.memory_bytes_max),
    );
    entry(text, "", &used);
    if let Some(count) = report.retransmits.filter(|&count| count > 0) {
        let segments = counted(count, "segment", "segments");
        entry(text, "", &format!("{segments} retransmitted by this machine (all programs)"));
    }
    if generator.waited_for_user > 0 {
        let waited = counted(generator.waited_for_user, "sent request was", "sent requests were");
        let words = format!(
            "{waited} due while every user awaited an answer: their wait is in the response \
             times; more --users send them in time"
        );
        entry(text, "", &words);
    }
}

/// Indentation of the text of an entry, and the maximum number of columns per line.
const INDENT: &str = "          ";
const COLUMNS: usize = 84;

/// Appends the name of an entry and its text, which is wrapped to `COLUMNS`.
fn entry(text: &mut String, name: &str, words: &str) {
    let _ = write!(text, "{name:<10}");
    paragraph(text, INDENT, words);
}

/// Appends a text, which is wrapped to `COLUMNS`. The first line must be indented already.
fn paragraph(text: &mut String, indent: &str, words: &str) {
    let mut column = indent.len();
    for (n, word) in words.split(' ').enumerate() {
        let len = word.chars().count();
        if n > 0 && column + 1 + len > COLUMNS {
            let _ = write!(text, "\n{indent}");
            column = indent.len();
        } else if n > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += len;
    }
    text.push('\n');
}

/// Describes how far a tester fell behind its schedule.
pub fn behind(mark: &FellBehind) -> String {
    let mut text = format!(
        "FELL BEHIND: {} of the requests left more than {} late (p99 {}, max {})",
        percent(mark.late_share),
        time(FellBehind::LATE),
        time(mark.lateness_p99),
        time(mark.lateness_max),
    );
    if mark.unsent > 0 {
        let _ = write!(text, ", {} never left", mark.unsent);
    }
    text.push_str(
        ". The figures are not the server's alone: ask for a lower rate or fewer users, give it \
         more --threads, or a machine of its own",
    );
    text
}

fn compared(comparison: &Comparison, on: &str) -> String {
    let [a, b] = &comparison.sides;
    let mut text = format!("=== Comparison Complete ===\nA  {}\nB  {}\n", a.name, b.name);
    let rounds = a.runs.len().min(b.runs.len());
    let Some(first) = a.runs.first() else {
        text.push_str("\nNo round was finished: nothing to compare.\n");
        return text;
    };
    let plan = &first.plan;
    let each = figures::planned(plan);
    let place = if on == "kernel" { String::new() } else { format!(" from Towpath ({on})") };
    let _ = writeln!(
        text,
        "\nLoad      {}: {}, by {}{place}\nRounds    {rounds}, A and B in turn, {each} each\n",
        figures::arrivals(plan),
        figures::pattern(plan),
        figures::protocol(plan),
    );
    let _ = writeln!(text, "{:<12}{:>12}{:>12}   change from A to B", "", "A", "B");
    for it in &comparison.verdicts {
        let (name, a, b) = (it.figure.name(), it.figure.text(it.a), it.figure.text(it.b));
        let _ = writeln!(text, "{name:<12}{a:>12}{b:>12}   {}", it.change());
        let _ = writeln!(text, "{:<12}{:>12}{:>12}   {}", "", "", "", it.words());
    }
    let counts = comparison.losses();
    for (name, [of_a, of_b]) in counts {
        let _ = writeln!(text, "{name:<12}{of_a:>12}{of_b:>12}   of all rounds");
    }
    for (name, side) in [("A", a), ("B", b)] {
        for it in side.failures().iter() {
            let words = format!("{} {}: {}", it.count, it.kind, printable(&it.example));
            entry(&mut text, name, &words);
        }
    }
    text.push_str(METHOD);
    let marked = comparison.runs().iter().filter(|run| run.report.fell_behind.is_some()).count();
    if marked > 0 {
        let of = counted(marked as u64, "run", "runs");
        let _ = writeln!(text, "\nThe tester FELL BEHIND in {of}: part of the times is its own.");
    }
    let runs = comparison.runs();
    let limited = runs.iter().filter(|run| figures::is_tester_limit(run.report)).count();
    if limited > 0 {
        let of = counted(limited as u64, "run", "runs");
        let words =
            format!("The tester WAS THE LIMIT in {of}: its busiest thread had no time left.");
        let _ = writeln!(text, "\n{words}");
    }
    text
}

/// Explanation of the method of `--compare`, for the text and the page.
pub const METHOD: &str = "
Figures are medians over the rounds. A difference is more than the noise if the rank-sum test of
Mann and Whitney (exact, two-sided) gives equal servers a chance of at most 1 % to lie so far
apart; the interval of the change is that of 99 %, by Hodges and Lehmann.
";

fn searched(search: &Search, on: &str) -> String {
    let mut text = String::from("=== Search Complete ===\n");
    paragraph(&mut text, "", &search.words());
    text.push('\n');
    let _ = writeln!(text, "  step  {:>15}  {:>19}  {:>8}", "", "", search.quantile);
    for (n, step) in search.steps.iter().enumerate() {
        let _ = writeln!(text, "  {:>4}  {}", n + 1, step.line());
    }
    if let Some(best) = search.best() {
        let _ = write!(text, "\nFigures at {}:\n\n{}", rate(best.rate), report(&best.report, on));
    }
    text
}

/// Returns `text` with control characters replaced by U+FFFD, because terminals interpret them and
/// XML forbids them.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use crate::{Arrivals, Spacing};

    use super::super::samples;
    use super::*;

    #[test]
    fn the_words_of_the_old_tester_come_first() {
        let text = report(&samples::report(), "kernel");
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("=== Load Test Complete ==="));
        let words: Vec<_> =
            lines.take(7).map(|line| line.split_once(':').expect("a word")).collect();
        let names: Vec<_> = words.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["Sent", "Received", "Failures", "Avg RTT", "p90", "p95", "p99"]);
        let values: Vec<_> = words.iter().map(|(_, value)| value.trim()).collect();
        assert_eq!(values[..3], ["3003", "3000", "3"]);
        assert_eq!(values[6], "982µs");
    }

    #[test]
    fn failures_have_a_cause_and_an_example() {
        let mut run = samples::report();
        run.failures.add(crate::Failure::Other, 1, || "a\u{1b}[2Jb".to_owned());
        let text = report(&run, "kernel");
        assert!(text.contains("\n3         connection reset: the server"), "{text}");
        assert!(text.contains("first: 127.0.0.1:7: reset <by> peer"), "{text}");
        assert!(text.contains("first: a\u{fffd}[2Jb"), "{text}");
    }

    #[test]
    fn open_loops_show_response_beside_service_times() {
        let mut run = samples::report();
        assert!(!report(&run, "kernel").contains("Response"));
        run.plan.arrivals = Arrivals::Open { per_second: 1000., spacing: Spacing::Poisson };
        let text = report(&run, "rootless");
        for word in
            ["Response", "Service", "Connect", "open loop of 1000/s with Poisson", "rootless"]
        {
            assert!(text.contains(word), "{word}: {text}");
        }
    }

    #[test]
    fn a_tester_that_fell_behind_says_by_how_much() {
        let mut run = samples::report();
        assert!(report(&run, "kernel").contains("kept its schedule: 99 % of the requests"));
        run.fell_behind = Some(FellBehind {
            late: 60,
            late_share: 0.02,
            lateness_p99: Duration::from_millis(3),
            lateness_max: Duration::from_millis(12),
            unsent: 7,
        });
        let text = report(&run, "kernel");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let wanted = "FELL BEHIND: 2.0 % of the requests left more than 1ms late \
                      (p99 3ms, max 12ms), 7 never left";
        assert!(text.contains(wanted), "{text}");
    }

    #[test]
    fn a_tester_without_time_left_is_named_as_the_limit() {
        let mut run = samples::report();
        run.generator.busy = 0.949;
        assert!(!report(&run, "kernel").contains("LIMIT"));
        run.generator.busy = 0.95;
        let text = report(&run, "kernel");
        assert!(
            text.contains("Tester    WAS THE LIMIT: its busiest thread was busy 95 %"),
            "{text}"
        );
        let runs = [vec![run; 5], vec![samples::report(); 5]];
        let comparison = Comparison::new(["a:1".to_owned(), "b:2".to_owned()], runs);
        let text = compared(&comparison, "kernel");
        assert!(text.contains("WAS THE LIMIT in 5 runs"), "{text}");
    }

    #[test]
    fn connections_closed_while_idle_are_told_apart_from_failures() {
        let mut run = samples::report();
        run.closed_idle = 37;
        let text = report(&run, "kernel");
        assert!(text.contains("3 connected again, 37 closed while idle\n"), "{text}");
        assert!(text.contains("Failures: 3\n"), "{text}");
    }

    #[test]
    fn lines_fit_a_terminal() {
        let text = report(&samples::report(), "kernel");
        for line in text.lines().filter(|line| !line.contains("first:")) {
            assert!(line.chars().count() <= 90, "{line}");
        }
    }
}
