//! The report as a self-contained HTML page.

use std::fmt::Write;

use towpath_chart::escaped;

use super::chart::{self, Kind, Line, PARTS};
use super::data::{Entry, Flame, Measured, Measurement, Outcome, Report};
use super::{flame, table};
use crate::figures::{Interval, Median};

/// Renders the page.
pub fn of(report: &Report) -> String {
    let mut body = head(report);
    let mut rest = &report.measurements[..];
    let mut group = "";
    while let Some(first) = rest.first() {
        let len = rest.iter().take_while(|it| it.case == first.case).count();
        let (rows, others) = rest.split_at(len);
        if group != first.group {
            group = &first.group;
            let _ = write!(body, "<h2>{}</h2>", escaped(group_title(group)));
        }
        let flames: Vec<&Flame> = report.flames.iter().filter(|it| it.case == first.case).collect();
        body += &section(rows, &flames);
        rest = others;
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Towpath beside others</title><style>{STYLE}{flames}</style></head>\
         <body><main>{body}</main><script>{script}</script></body></html>\n",
        flames = flame::STYLE,
        script = flame::SCRIPT,
    )
}

fn head(report: &Report) -> String {
    let machine = &report.machine;
    let versions: Vec<String> =
        report.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let mut text = format!(
        "<h1>Towpath beside others</h1><p>Measured on {}: {}, {} cores, {:.0} GiB of memory, \
         Linux {}. {} rounds, in each of which every side has {} s unless a row says otherwise. \
         {}.</p>",
        escaped(&report.date),
        escaped(&machine.cpu),
        machine.cores,
        machine.memory_bytes as f64 / f64::from(1 << 30),
        escaped(&machine.kernel),
        report.repeat,
        report.seconds,
        escaped(&versions.join(", ")),
    );
    text += INTRODUCTION;
    let missing = table::missing(report);
    if !missing.is_empty() {
        text += "<details><summary>What is missing, and why</summary><ul>";
        for line in missing {
            let _ = write!(text, "<li>{}</li>", escaped(&line));
        }
        text += "</ul></details>";
    }
    text
}

const INTRODUCTION: &str = "<p>Client and server share one machine: what a side gives beside the \
    others means something, a figure alone little. The client is the same on all sides, and goes \
    from one to the next in each round. A bar ends at the median of the rounds; \
    the line over it is the interval in which the true median lies with a probability of 95 % \
    (with fewer than six rounds, the least and the largest). Point at a row for its figures. \
    <em>Where the time is</em> comes from a round of its own, under perf, which has no figures: \
    whose thread it was, and below it who called whom, each as wide as it took time; \
    the kernel's functions are grey and have [k], Towpath's are blue. Click on one to see it \
    larger, and on all to go back.</p>\
    <p class=\"legend\"><span class=\"kernel\"></span>Linux <span class=\"towpath\"></span>Towpath \
    <span class=\"peer\"></span>others; CPU of <span class=\"client\"></span>client \
    <span class=\"program\"></span>program, with its stack where that is in it \
    <span class=\"engine\"></span>engine <span class=\"rest\"></span>rest of the machine</p>";

fn group_title(group: &str) -> &str {
    match group {
        "programs" => "Programs",
        "rr" => "Request and response",
        "churn" => "A connection for each request",
        "users" => "Users who send now and then",
        "bulk" => "Bulk",
        "udp" => "Datagrams",
        "loss" => "Bulk over 20 ms and loss",
        other => other,
    }
}

/// Renders all rows of one case, and its profiles.
fn section(rows: &[Measurement], flames: &[&Flame]) -> String {
    let seconds = rows[0].seconds.map(|it| format!(" ({it} s each)")).unwrap_or_default();
    let mut text = format!("<section><h3>{}{seconds}</h3>", escaped(&rows[0].case));
    let rate = rows.iter().find(|row| !row.is_less_better);
    if let Some(rate) = rate {
        let title = format!("{} (more is better)", rate.unit);
        text += &chart::bars(&title, &lines(rate, |measured| Some(measured.value)));
    }
    let times: Vec<&Measurement> = rows.iter().filter(|row| row.is_less_better).collect();
    if let [first, .., last] = times[..] {
        let names = [first, last].map(|row| row.which.trim_start_matches(", "));
        let title = format!("{} ● and {} ○, µs (less is better)", names[0], names[1]);
        text += &chart::times(&title, &pairs(first, last));
    }
    if let Some(first) = times.first() {
        let title = "how many were answered in a time or less (further left is better)";
        text += &chart::spreads(title, &lines(first, |measured| measured.spread.clone()));
    }
    text += &cpu(rate.unwrap_or(&rows[0]));
    text += &figures(rows);
    text += &flame::of(flames);
    text + "</section>"
}

fn kind(side: &str) -> Kind {
    match side {
        "kernel" | "kernel, loopback" => Kind::Kernel,
        side if ["TAP", "rootless", "both ends"].iter().any(|ours| side.starts_with(ours)) => {
            Kind::Towpath
        }
        _ => Kind::Peer,
    }
}

fn lines<T>(row: &Measurement, of: impl Fn(&Measured) -> Option<T>) -> Vec<Line<'_, T>> {
    let line = |entry: &'_ Entry| match &entry.outcome {
        Outcome::Measured(measured) => of(measured),
        Outcome::Missing(_) => None,
    };
    let line = |entry| (entry, line(entry));
    row.sides
        .iter()
        .map(line)
        .map(|(entry, value)| Line { side: &entry.side, kind: kind(&entry.side), value })
        .collect()
}

fn pairs<'a>(first: &'a Measurement, last: &Measurement) -> Vec<Line<'a, (f64, f64)>> {
    let seconds = lines(last, |measured| Some(measured.value.median));
    let mut firsts = lines(first, |measured| Some((measured.value.median, f64::NAN)));
    for (line, second) in firsts.iter_mut().zip(seconds) {
        line.value = line.value.zip(second.value).map(|((first, _), second)| (first, second));
    }
    firsts
}

/// Formats the CPU time per unit of work, or per second if the row counts no work.
fn cpu(row: &Measurement) -> String {
    let (what, scale) = match &*row.unit {
        "Gbit/s" => ("ms of CPU for each Gbit".to_owned(), 1e3),
        "Mbit/s" => ("ms of CPU for each Mbit".to_owned(), 1e3),
        "µs" => ("processors that were busy".to_owned(), 1.),
        unit => (format!("µs of CPU for each of {}", unit.trim_end_matches("/s")), 1e6),
    };
    let is_rate = !row.is_less_better;
    let parts = |measured: &Measured| -> Option<[f64; PARTS.len()]> {
        let middle = &measured.middle;
        let parts = middle.parts?;
        let known = [parts.client, parts.program, parts.engine];
        let rest = (middle.cores - known.iter().sum::<f64>()).max(0.);
        let each = if is_rate { middle.value } else { 1. };
        (each > 0.).then(|| [known[0], known[1], known[2], rest].map(|part| part / each * scale))
    };
    chart::stacks(&format!("{what} (less is better)"), &lines(row, parts))
}

/// Renders the table with the figures of the plots.
fn figures(rows: &[Measurement]) -> String {
    let mut text =
        "<details><summary>Figures</summary><div class=\"wide\"><table><tr><th>side</th>\
                    <th></th><th>median (cores)</th><th>interval</th><th>ratio</th></tr>"
            .to_owned();
    for row in rows {
        let name = format!("{} {}", row.unit, row.which.trim_start_matches(", "));
        for entry in &row.sides {
            let (side, name) = (escaped(&entry.side), escaped(name.trim()));
            let _ = write!(text, "<tr><td>{side}</td><td>{name}</td>");
            let _ = match &entry.outcome {
                Outcome::Missing(why) => {
                    write!(text, "<td colspan=\"3\">missing: {}</td></tr>", escaped(why))
                }
                Outcome::Measured(measured) => {
                    let (Interval { low, high, .. }, middle) = (measured.value, measured.middle);
                    let ratio = measured.ratio.as_ref();
                    let ratio =
                        ratio.map(|it| format!("{} of {}", it.interval, it.to)).unwrap_or_default();
                    let (middle, ratio) = (Median(middle), escaped(&ratio));
                    write!(
                        text,
                        "<td>{middle}</td><td>{low:.1} to {high:.1}</td><td>{ratio}</td></tr>"
                    )
                }
            };
        }
    }
    text + "</table></div></details>"
}

const STYLE: &str = "\
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--soft:#5c6570;--edge:#d8dde3;\
--kernel:#8a939e;--towpath:#1f6fc4;--peer:#c9751b;--client:#a9b4c0;--program:#3f8f6b;--engine:#1f6fc4;--rest:#e0d3b8}\
@media (prefers-color-scheme:dark){\
:root{--back:#15191e;--text:#e6eaee;--soft:#9aa5b1;--edge:#333b44;\
--kernel:#7d8793;--towpath:#5aa5f0;--peer:#e39a4a;--client:#5f6b78;--program:#5bb58b;--engine:#5aa5f0;--rest:#57503f}}\
body{background:var(--back);color:var(--text);font:16px/1.5 system-ui,sans-serif;margin:0}\
main{max-width:760px;margin:0 auto;padding:1rem}\
section{border-top:1px solid var(--edge);padding:.5rem 0 1rem}\
h3,h4{margin:.6rem 0 .2rem}h4{font-weight:500;font-size:.85rem;color:var(--soft)}\
svg{width:100%;height:auto;display:block}\
text{font:12px system-ui,sans-serif;fill:var(--text)}text.none{fill:var(--soft);font-style:italic}\
.kernel{fill:var(--kernel);background:var(--kernel);stroke:var(--kernel)}\
.towpath{fill:var(--towpath);background:var(--towpath);stroke:var(--towpath)}\
.peer{fill:var(--peer);background:var(--peer);stroke:var(--peer)}\
.client{fill:var(--client);background:var(--client)}.program{fill:var(--program);background:var(--program)}\
.engine{fill:var(--engine);background:var(--engine)}.rest{fill:var(--rest);background:var(--rest)}\
rect{stroke:none}circle{stroke-width:2}circle.empty{fill:var(--back)}\
path.spread{fill:none;stroke-width:2}.grid{stroke:var(--edge);fill:none}\
.line{stroke:var(--text);stroke-width:1.2;fill:none}.hover{fill:transparent}\
.legend span{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 .6em;border-radius:2px}\
.scale{font-size:.75rem;color:var(--soft);margin:.1rem 0}\
details{font-size:.85rem;color:var(--soft)}summary{cursor:pointer}.wide{overflow-x:auto}\
table{border-collapse:collapse}\
td,th{text-align:left;padding:.1rem .6rem .1rem 0;white-space:nowrap}";

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::*;

    #[test]
    fn a_page_has_all_that_was_measured_and_what_was_not() {
        let page = of(&example());
        for part in [
            "12.5",
            "both &amp; &lt;all&gt;",
            "1 KiB and back",
            "it has no UDP",
            "p99 ○",
            "99.9 %",
            "send&lt;T&gt;_[k]: 100.0 %",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("<all>") && !page.contains("NaN") && !page.contains("inf"));
        // The page loads no external resources.
        assert!(!page.contains("http") && !page.contains("src="));
    }

    #[test]
    fn what_is_opened_is_closed() {
        let page = of(&example());
        for name in [
            "svg", "section", "details", "table", "tr", "td", "text", "title", "h3", "h4", "p",
            "i", "div", "script",
        ] {
            let opened = page.matches(&format!("<{name}>")).count()
                + page.matches(&format!("<{name} ")).count();
            assert_eq!(opened, page.matches(&format!("</{name}>")).count(), "{name}");
        }
    }

    #[test]
    fn a_report_without_measurements_is_a_page_as_well() {
        let page = of(&Report { measurements: Vec::new(), ..example() });
        assert!(page.contains("Towpath beside others") && !page.contains("<svg"));
    }
}
