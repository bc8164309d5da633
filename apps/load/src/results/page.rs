//! Formats the figures as a self-contained HTML page, without scripts, further files or network
//! access.

use std::fmt::Write as _;
use std::time::Duration;

use crate::{Ended, Failures, Histogram, Report};

use super::compare::{ComparedFigure, Comparison};
use super::figures::{self, QUANTILES, bits, bytes, percent, rate, time};
use super::outcome::{Document, Outcome};
use super::plot::{self, Curve, Steps, escaped, number, seconds};
use super::search::{Missed, Search};
use super::text::{METHOD, quantile};

/// Formats the document as an HTML page.
pub fn of(document: &Document) -> String {
    let (title, body) = match &document.outcome {
        Outcome::Run { run } => (run.plan.target.name.clone(), report(run)),
        Outcome::Comparison { comparison } => compared(comparison),
        Outcome::Search { search } => searched(search),
    };
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>towpath load: {title}</title><style>{STYLE}</style></head>\
         <body><main><h1>{title}</h1>{body}{foot}</main></body></html>\n",
        title = escaped(&title),
        foot = foot(document),
    )
}

/// Formats the figures of one run.
fn report(report: &Report) -> String {
    let mut text = setting(report);
    text += &marks(report);
    text += &tiles(report);
    text += &plots(report);
    text += &tables(report);
    text
}

/// Formats the arrivals, the traffic pattern and the duration of a run.
fn setting(report: &Report) -> String {
    let plan = &report.plan;
    let warmup = if plan.warmup.is_zero() {
        String::new()
    } else {
        format!(" after {} of warm-up", time(plan.warmup))
    };
    let address = report.address.to_string();
    let address =
        if address == plan.target.name { String::new() } else { format!(" at {address}") };
    format!(
        "<p class=\"lead\">{}{}: {}, {}. Measured for {}{warmup} on {}.</p>",
        escaped(&figures::protocol(plan)),
        escaped(&address),
        escaped(&figures::arrivals(plan)),
        escaped(&figures::pattern(plan)),
        time(report.duration),
        date(report.started_unix_s),
    )
}

/// Formats the warnings about the figures of a run.
fn marks(report: &Report) -> String {
    let mut text = String::new();
    let mut mark = |words: &str| {
        let _ = write!(text, "<p class=\"mark\">{}</p>", escaped(words));
    };
    if let Some(behind) = &report.fell_behind {
        mark(&super::text::behind(behind));
    }
    if figures::unsent_share(report) > figures::UNSENT_NOTED {
        mark(&figures::unsent(report));
    }
    if figures::is_tester_limit(report) {
        mark(&figures::tester_limit(report));
    }
    if figures::closes_after_answers(report) {
        mark(figures::CLOSES);
    }
    match report.ended {
        Ended::Stopped => {
            let planned = figures::planned(&report.plan);
            mark(&format!("Stopped after {} of {planned}.", time(report.duration)));
        }
        Ended::NoConnection => mark("No user had a connection."),
        _ => {}
    }
    text
}

/// Formats the most important figures of a run as tiles.
fn tiles(report: &Report) -> String {
    let mut text = String::from("<div class=\"tiles\">");
    let mut tile = |value: String, name: &str| {
        let _ = write!(text, "<div><b>{}</b><span>{name}</span></div>", escaped(&value));
    };
    if report.plan.shape.is_stream() {
        tile(bits(report.bits_sent()), "sent");
        tile(bits(report.bits_received()), "received");
    } else {
        let times = figures::main_times(report);
        tile(rate(report.rate()), "answers");
        if !times.is_empty() {
            for (name, share) in [("p50", 0.5), ("p99", 0.99), ("longest", 1.)] {
                tile(time(quantile(times, share)), name);
            }
        }
    }
    tile(report.failures.total().to_string(), "failures");
    tile(format!("{} of {}", report.connected, report.plan.users), "connected");
    text + "</div>"
}

fn plots(report: &Report) -> String {
    let is_open = figures::is_open(&report.plan);
    let mut text = String::new();
    if !report.plan.shape.is_stream() && !figures::main_times(report).is_empty() {
        let mut all: Vec<(&str, &'static str, &Histogram)> = Vec::new();
        if is_open {
            all.push(("response time, from when a request was due", "c1", &report.response));
            all.push(("service time, from when it was sent", "c2", &report.service));
        } else {
            all.push(("service time", "c1", &report.service));
        }
        text += &plot::percentiles("Time that a share of the requests has at most", &all);
        let name = if is_open { "Response times" } else { "Service times" };
        text += &plot::distribution(name, "c1", figures::main_times(report));
    }
    if report.periods.len() > 1 {
        text += &over_time(report);
    }
    text
}

/// Draws rates and times over the periods of a run.
fn over_time(report: &Report) -> String {
    let curve = |name: &str, class, value: &dyn Fn(&crate::Period) -> f64| {
        let point = |it: &crate::Period| (it.at.as_secs_f64(), value(it));
        let points = report.periods.iter().map(point).collect();
        Curve { name: name.to_owned(), class, points }
    };
    let each = |it: &crate::Period, count: u64| count as f64 / it.length.as_secs_f64().max(1e-9);
    if report.plan.shape.is_stream() {
        let curves = [
            curve("sent", "c1", &|it| each(it, it.bytes_sent) * 8.),
            curve("received", "c2", &|it| each(it, it.bytes_received) * 8.),
        ];
        return plot::rates("Bits per second", &curves, bits);
    }
    let mut rates = Vec::new();
    if figures::is_open(&report.plan) {
        // Draw a broad line for the requests. Otherwise the line of the answers would hide it if
        // the server answers all of them.
        rates.push(curve("requests", "c2 broad", &|it| each(it, it.sent)));
    }
    rates.push(curve("answers", "c1", &|it| each(it, it.received)));
    if !report.failures.is_empty() {
        rates.push(curve("failures", "c4", &|it| each(it, it.failed)));
    }
    let of = |time: fn(&crate::Period) -> Duration| {
        // Leave a gap for a period without an answer, because the time of an answer is unknown
        // rather than zero.
        move |it: &crate::Period| {
            if it.received == 0 { f64::NAN } else { time(it).as_secs_f64() }
        }
    };
    let times = [
        curve("longest", "c4", &of(|it| it.max)),
        curve("p99", "c3", &of(|it| it.p99)),
        curve("p90", "c2", &of(|it| it.p90)),
        curve("p50", "c1", &of(|it| it.p50)),
    ];
    plot::rates("Per second, over the time of the run", &rates, number)
        + &plot::times("Response time, over the time of the run", &times)
}

fn tables(report: &Report) -> String {
    let mut text = String::from("<h2>Figures</h2>");
    text += &times(report);
    text += &failures("Failures", &report.failures);
    let generator = &report.generator;
    let lateness = if generator.lateness.is_empty() {
        "no schedule to keep".to_owned()
    } else {
        let lateness = &generator.lateness;
        format!("p99 {}, max {}", time(lateness.quantile(0.99)), time(lateness.max()))
    };
    let retransmits = report.retransmits.map_or("not known".to_owned(), |it| it.to_string());
    let rows = [
        ("Requests sent", report.sent.to_string()),
        ("Requests answered", report.received.to_string()),
        ("Requests that were due", report.scheduled.to_string()),
        ("Requests that were due and never left", generator.unsent.to_string()),
        ("Due while every user awaited an answer", generator.waited_for_user.to_string()),
        ("Bytes sent", bytes(report.bytes_sent)),
        ("Bytes received", bytes(report.bytes_received)),
        ("Connected again", report.reconnects.to_string()),
        ("Closed by the server while idle", report.closed_idle.to_string()),
        ("Time until all users were connected", time(report.connecting)),
        ("Requests left late by", lateness),
        ("Busiest thread of the tester", format!("busy {}", percent(generator.busy))),
        ("CPU time of the tester", time(report.cpu)),
        ("Memory of the tester", bytes(report.memory_bytes_max)),
        ("Segments that this machine retransmitted", retransmits),
    ];
    text + &pairs(rows.iter().map(|(name, value)| (*name, &**value)))
}

/// Formats a table with two columns.
fn pairs<'a>(rows: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::from("<table class=\"pairs\">");
    for (name, value) in rows {
        let _ = write!(text, "<tr><th>{}</th><td>{}</td></tr>", escaped(name), escaped(value));
    }
    text + "</table>"
}

fn times(report: &Report) -> String {
    let rows = [
        ("Response", &report.response),
        ("Service", &report.service),
        ("Connect", &report.connect),
        ("Lost after", &report.lost),
    ];
    let there: Vec<_> = rows.into_iter().filter(|row| !row.1.is_empty()).collect();
    if there.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "<div class=\"wide\"><table><tr><th></th><th>count</th><th>min</th><th>avg</th>",
    );
    for (name, _) in QUANTILES {
        let _ = write!(text, "<th>{name}</th>");
    }
    text.push_str("</tr>");
    for (name, times) in there {
        let (min, mean) = (time(times.min()), time(times.mean()));
        let _ = write!(
            text,
            "<tr><th>{name}</th><td>{}</td><td>{min}</td><td>{mean}</td>",
            times.count()
        );
        for (_, share) in QUANTILES {
            let _ = write!(text, "<td>{}</td>", time(quantile(times, share)));
        }
        text.push_str("</tr>");
    }
    text + "</table></div>"
}

fn failures(title: &str, failures: &Failures) -> String {
    if failures.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "<h2>{title}</h2><div class=\"wide\"><table class=\"words\"><tr><th>count</th>\
         <th>kind</th><th>cause</th><th>first</th></tr>",
    );
    for it in failures.iter() {
        let _ = write!(
            text,
            "<tr><td>{}</td><th>{}</th><td>{}</td><td><code>{}</code></td></tr>",
            it.count,
            it.kind,
            escaped(figures::explanation(it.kind)),
            escaped(&it.example),
        );
    }
    text + "</table></div>"
}

fn compared(comparison: &Comparison) -> (String, String) {
    let [a, b] = &comparison.sides;
    let title = format!("{} and {}", a.name, b.name);
    let Some(first) = a.runs.first() else {
        return (title, "<p class=\"mark\">No round was finished.</p>".to_owned());
    };
    let mut text = format!(
        "<p class=\"lead\">A is {}, B is {}. {} rounds, in each of which A and then B had {}: \
         {}, {}. {}.</p>",
        escaped(&a.name),
        escaped(&b.name),
        a.runs.len(),
        figures::planned(&first.plan),
        escaped(&figures::arrivals(&first.plan)),
        escaped(&figures::pattern(&first.plan)),
        date(first.started_unix_s),
    );
    for run in comparison.runs() {
        if let Some(mark) = &run.report.fell_behind {
            let words =
                format!("{}, round {}: {}", run.label, run.round, super::text::behind(mark));
            let _ = write!(text, "<p class=\"mark\">{}</p>", escaped(&words));
        }
    }
    text += "<div class=\"wide\"><table class=\"words\"><tr><th></th><th>A</th><th>B</th>\
             <th>change from A to B</th><th></th></tr>";
    for it in &comparison.verdicts {
        let figure = it.figure;
        let _ = write!(
            text,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            figure.name(),
            escaped(&figure.text(it.a)),
            escaped(&figure.text(it.b)),
            escaped(&it.change()),
            escaped(&it.words()),
        );
    }
    for (name, [of_a, of_b]) in comparison.losses() {
        let _ = write!(
            text,
            "<tr><th>{name}</th><td>{of_a}</td><td>{of_b}</td><td></td><td>of all rounds</td></tr>"
        );
    }
    let _ = write!(text, "</table></div><p class=\"key\">{METHOD}</p>");
    for (name, side) in [("A", a), ("B", b)] {
        text += &failures(&format!("Failures of {name}"), &side.failures());
    }
    for it in &comparison.verdicts {
        // Omit a round without an answer, because the time of an answer is unknown rather than
        // zero.
        let is_time = !it.figure.is_more_better();
        let values = |n: usize| {
            let all = comparison.sides[n].runs.iter().map(|run| it.figure.of(run));
            all.map(move |value| if is_time && value <= 0. { f64::NAN } else { value })
        };
        let rows = [("A", "c1", values(0).collect()), ("B", "c2", values(1).collect())];
        let words = match it.figure {
            ComparedFigure::Rate => number,
            ComparedFigure::Bits => bits,
            ComparedFigure::P50 | ComparedFigure::P99 => seconds,
        };
        text += &plot::dots(&format!("{}, each round", it.figure.name()), &rows, words);
    }
    let (of_a, of_b) = (a.times(), b.times());
    if !of_a.is_empty() && !of_b.is_empty() {
        let all = [("A", "c1", &of_a), ("B", "c2", &of_b)];
        text += &plot::percentiles("Time that a share of the requests has at most", &all);
    }
    (title, text)
}

fn searched(search: &Search) -> (String, String) {
    let title = search.title();
    let class = if search.is_tester_limit() { "mark" } else { "lead" };
    let mut text = format!("<p class=\"{class}\">{}</p>", escaped(&search.words()));
    let points = |belongs: fn(Option<Missed>) -> bool| {
        let steps = search.steps.iter().filter(move |step| belongs(step.missed));
        steps.filter_map(|step| Some((step.rate, step.quantile_s?))).collect::<Vec<_>>()
    };
    let is_behind = |missed: Option<Missed>| missed == Some(Missed::TesterBehind);
    let groups = [
        Steps {
            class: "dot c1",
            key: "c1",
            name: "kept",
            points: points(|missed| missed.is_none()),
        },
        Steps {
            class: "ring c2",
            key: "c2",
            name: "missed",
            points: points(|missed| matches!(missed, Some(Missed::TooLate | Missed::Stopped))),
        },
        Steps {
            class: "ring c3",
            key: "c3",
            name: "the tester fell behind",
            points: points(is_behind),
        },
    ];
    let name = format!("{} over the rate that was asked for", search.quantile);
    text += &plot::steps(&name, &groups, search.bound_s);
    let _ = write!(
        text,
        "<div class=\"wide\"><table class=\"words\"><tr><th>step</th><th>asked</th>\
         <th>answered</th><th>{}</th><th></th></tr>",
        escaped(&search.quantile)
    );
    for (n, step) in search.steps.iter().enumerate() {
        let _ = write!(
            text,
            "<tr><th>{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            n + 1,
            rate(step.rate),
            rate(step.report.rate()),
            step.quantile_s.map_or_else(String::new, seconds),
            step.missed.map_or("kept", Missed::words),
        );
    }
    text.push_str("</table></div>");
    if let Some(best) = search.best() {
        let _ = write!(text, "<h2>At {}</h2>", rate(best.rate));
        text += &report(&best.report);
    }
    (title, text)
}

/// Formats the command, the machine and the results of the assertions.
fn foot(document: &Document) -> String {
    let mut text = String::new();
    for it in &document.assertions {
        let (class, word) = if it.holds { ("kept", "kept") } else { ("mark", "missed") };
        let words = format!("Bound {}: {word}, the figure is {}.", it.bound, it.found);
        let _ = write!(text, "<p class=\"{class}\">{}</p>", escaped(&words));
    }
    let command: Vec<_> = document.argv.iter().map(|word| quoted(word)).collect();
    let machine = &document.machine;
    let _ = write!(
        text,
        "<h2>Command</h2><pre>{}</pre><p class=\"key\">Towpath {}. The tester ran on {}, \
         {} processors, {} of memory, Linux {}; its sockets were on: {}.</p>",
        escaped(&command.join(" ")),
        document.version,
        escaped(&machine.cpu),
        machine.cpus,
        bytes(machine.memory_bytes),
        escaped(&machine.kernel),
        document.on,
    );
    text
}

/// Quotes a word of a command line for a shell, if necessary.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+[]".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Formats a Unix time in seconds as a date and time in UTC.
fn date(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Count years from the first of March, so that a leap day is always the last day of a year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
}

const STYLE: &str = "\
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--soft:#5c6570;--edge:#dfe3e8;\
--tile:#f4f6f8;--c1:#1f6fc4;--c2:#c9751b;--c3:#7a4fb5;--c4:#c03744;--warn:#fff3d6}\
@media (prefers-color-scheme:dark){:root{--back:#15191e;--text:#e6eaee;--soft:#9aa5b1;\
--edge:#2d343c;--tile:#1d2329;--c1:#5aa5f0;--c2:#e39a4a;--c3:#b18ae6;--c4:#f07a84;--warn:#4a3a12}}\
body{background:var(--back);color:var(--text);font:16px/1.5 system-ui,sans-serif;margin:0}\
main{max-width:800px;margin:0 auto;padding:24px 20px 60px}\
h1{font-size:26px;margin:0 0 4px;overflow-wrap:anywhere}\
h2{font-size:19px;margin:34px 0 8px}h3{font-size:15px;margin:28px 0 6px;font-weight:600}\
.lead{color:var(--soft);margin:0 0 18px}.key{color:var(--soft);font-size:13px;margin:4px 0 0}\
.key span{display:inline-block;width:18px;height:3px;margin:0 6px 3px 14px;border-radius:2px}\
.key span:first-child{margin-left:0}.key .c1{background:var(--c1)}.key .c2{background:var(--c2)}\
.key .c3{background:var(--c3)}.key .c4,.key .bound{background:var(--c4)}\
.mark{background:var(--warn);border-left:4px solid var(--c2);padding:8px 12px;margin:12px 0}\
.kept{border-left:4px solid var(--c1);padding:4px 12px}\
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(112px,1fr));gap:10px}\
.tiles div{background:var(--tile);border-radius:8px;padding:10px 12px}\
.tiles b{display:block;font-size:20px;font-weight:600;white-space:nowrap}\
.tiles span{color:var(--soft);font-size:13px}\
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font-size:12px}\
svg .middle{text-anchor:middle}svg .end{text-anchor:end}\
.grid{stroke:var(--edge);stroke-width:1}.axis{stroke:var(--soft);fill:none;stroke-width:1}\
.curve{fill:none;stroke-width:2;stroke-linejoin:round}\
.curve.broad{stroke-width:8;stroke-opacity:.45}\
.bound{stroke:var(--c4);stroke-width:1.5;stroke-dasharray:6 4}\
path.c1{stroke:var(--c1)}path.c2{stroke:var(--c2)}path.c3{stroke:var(--c3)}path.c4{stroke:var(--c4)}\
rect.c1{fill:var(--c1)}.hover{fill:transparent}.hover:hover{fill:var(--text)}\
.dot{stroke:var(--back);stroke-width:1}.dot.c1{fill:var(--c1)}.dot.c2{fill:var(--c2)}\
.ring{fill:var(--back);stroke-width:2}.ring.c2{stroke:var(--c2)}\
.ring.c3{stroke:var(--c3);stroke-dasharray:3 2}\
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}\
th,td{padding:5px 12px 5px 0;text-align:right;border-bottom:1px solid var(--edge);font-weight:400}\
th{color:var(--soft)}tr>th:first-child{text-align:left}\
.words td,.words th{text-align:left;vertical-align:top}.pairs{margin-top:18px}\
.wide{overflow-x:auto}pre{background:var(--tile);border-radius:8px;padding:12px;\
white-space:pre-wrap;overflow-wrap:anywhere;font-size:13px}code{font-size:13px}";

#[cfg(test)]
mod tests {
    use super::super::machine::MachineFacts;
    use super::super::outcome::Assertion;
    use super::super::samples;
    use super::*;

    fn document(outcome: Outcome) -> Document {
        let argv = ["towpath", "load", "--message", "it's <b>"];
        let assertion = Assertion { bound: "p99<1us".into(), found: "1ms".into(), holds: false };
        Document {
            version: "1.2",
            argv: argv.map(str::to_owned).to_vec(),
            on: "kernel",
            machine: MachineFacts::here(),
            outcome,
            assertions: vec![assertion],
        }
    }

    /// Checks that the tags of a page are nested correctly, and that the page refers to no external
    /// resource.
    #[track_caller]
    fn is_sound(page: &str) {
        let mut open = Vec::new();
        let body = page.split_once("<body>").expect("a body").1;
        for tag in body.split('<').skip(1).map(|rest| rest.split_once('>').expect("its end").0) {
            if tag.ends_with('/') {
                continue;
            }
            match tag.strip_prefix('/') {
                Some("body" | "html") => {}
                Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
                None => open.push(tag.split(' ').next().expect("a name")),
            }
        }
        assert_eq!(open, Vec::<&str>::new());
        for word in ["<script", "http:", "https:", "url(", "@import", "NaN", "inf "] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn a_page_is_sound_and_needs_nothing_else() {
        let page = of(&document(Outcome::Run { run: Box::new(samples::report()) }));
        is_sound(&page);
        let wanted = [
            "<b>1000/s</b>",
            "reset &lt;by&gt; peer",
            "'it'\\''s &lt;b&gt;'",
            "Bound p99&lt;1us: missed",
            "99.9 %",
            "2023-11-14 22:13 UTC",
        ];
        for words in wanted {
            assert!(page.contains(words), "{words}");
        }
    }

    #[test]
    fn unsent_requests_and_failures_of_a_comparison_are_in_the_page() {
        let mut run = samples::report();
        run.plan.arrivals =
            crate::Arrivals::Open { per_second: 1000., spacing: crate::Spacing::Uniform };
        run.generator.unsent = 2000;
        run.scheduled += 2000;
        let page = of(&document(Outcome::Run { run: Box::new(run) }));
        is_sound(&page);
        let mark = "<p class=\"mark\">2000 of 5003 due requests never left: the server did not";
        assert!(page.contains(mark), "{page}");
        assert!(page.contains("<path class=\"curve c2 broad\""), "answers hide requests");
        let mut at_the_end = samples::report();
        at_the_end.scheduled += 2;
        at_the_end.generator.unsent = 2;
        let words = figures::unsent(&at_the_end);
        assert!(words.contains("never left: their users still waited"), "{words}");
        let names = ["a:1".to_owned(), "b:2".to_owned()];
        let dead = || Report { received: 0, service: Histogram::new(), ..samples::report() };
        let runs = [vec![samples::report(); 5], (0..5).map(|_| dead()).collect()];
        let comparison = Comparison::new(names, runs);
        let page = of(&document(Outcome::Comparison { comparison }));
        is_sound(&page);
        for words in
            ["<th>failures</th><td>15</td><td>15</td>", "Failures of B", "no verdict on times"]
        {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert!(!page.contains("B is better"), "{page}");
    }

    #[test]
    fn pages_of_empty_comparisons_and_searches_are_sound() {
        let names = || ["a:1".to_owned(), "b:2".to_owned()];
        let full = || vec![samples::report(); 5];
        for runs in [[Vec::new(), Vec::new()], [full(), full()]] {
            let comparison = Comparison::new(names(), runs);
            is_sound(&of(&document(Outcome::Comparison { comparison })));
        }
        let limit = "p99=1ms".parse().expect("a limit");
        let mut search = Search::new(&limit);
        is_sound(&of(&document(Outcome::Search { search: search.clone() })));
        let step = |rate| super::super::search::Step::new(rate, &limit, samples::report());
        search.push(step(1000.));
        search.push(step(2000.));
        is_sound(&of(&document(Outcome::Search { search })));
        let mut search = Search::new(&limit);
        let mut kept = step(1000.);
        kept.missed = None;
        search.push(kept);
        let mut behind = step(1500.);
        behind.missed = Some(Missed::TesterBehind);
        search.push(behind);
        let page = of(&document(Outcome::Search { search }));
        is_sound(&page);
        assert!(page.contains("<h1>1000/s or more: the tester fell behind</h1>"), "{page}");
        assert!(page.contains("<circle class=\"ring c3\"") && page.contains("<p class=\"mark\">"));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_709_251_199), "2024-02-29 23:59 UTC");
        assert_eq!(date(4_102_444_800), "2100-01-01 00:00 UTC");
    }
}
