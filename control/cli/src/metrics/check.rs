//! Checks metrics by the rules of `promtool check metrics`, for tests.

use std::collections::{HashMap, HashSet};

/// Returns what is wrong with a text in the format of Prometheus, version 0.0.4.
pub fn problems(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut helps, mut kinds) = (HashSet::new(), HashMap::new());
    let (mut samples, mut current) = (HashSet::new(), String::new());
    for line in text.lines() {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => {
                if !helps.insert(name.to_owned()) || help.is_empty() || !help.ends_with('.') {
                    found.push(format!("{name}: help {help:?}"));
                }
                name.clone_into(&mut current);
            }
            ["#", "TYPE", name, kind] => {
                if kinds.insert(name.to_owned(), kind.to_owned()).is_some() || name != current {
                    found.push(format!("{name}: type {kind}"));
                }
                found.extend(name_problem(name, kind));
            }
            _ => {
                let Some(sample) = parse_sample(line) else {
                    found.push(format!("unreadable: {line}"));
                    continue;
                };
                if sample.name != current || !kinds.contains_key(sample.name) {
                    found.push(format!("{line}: not below its help and type"));
                }
                if !samples.insert((sample.name.to_owned(), sample.labels)) {
                    found.push(format!("{line}: the sample is there twice"));
                }
            }
        }
    }
    found
}

/// Checks the name of a metric: characters, prefix, and suffixes.
fn name_problem(name: &str, kind: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let is_counter = kind == "counter";
    let wrong = !name.chars().all(is_plain)
        || !name.starts_with("towpath_")
        || name.contains("__")
        || is_counter != name.ends_with("_total")
        || ["_count", "_sum", "_bucket", "_info_total"].iter().any(|end| name.ends_with(end))
        || ["_kilobytes", "_milliseconds", "_percent", "_us"].iter().any(|it| name.contains(it));
    (wrong || !["counter", "gauge"].contains(&kind)).then(|| format!("{name}: name of a {kind}"))
}

struct ParsedSample<'a> {
    name: &'a str,
    labels: Vec<(String, String)>,
}

/// Parses a line `NAME{LABEL="VALUE",...} NUMBER`.
fn parse_sample(line: &str) -> Option<ParsedSample<'_>> {
    let (head, value) = line.rsplit_once(' ')?;
    value.parse::<f64>().ok()?;
    let Some((name, rest)) = head.split_once('{') else {
        return Some(ParsedSample { name: head, labels: Vec::new() });
    };
    let mut rest = rest.strip_suffix('}')?;
    let mut labels = Vec::new();
    while !rest.is_empty() {
        let (key, after) = rest.split_once("=\"")?;
        if key.is_empty() || !key.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
            return None;
        }
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    c @ ('"' | '\\') => c,
                    _ => return None,
                }),
                (_, c) => value.push(c),
            }
        };
        labels.push((key.to_owned(), value));
        rest = &after[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    labels.sort();
    Some(ParsedSample { name, labels })
}

#[test]
fn wrong_texts_are_found() {
    let good = "# HELP towpath_a_total A.\n# TYPE towpath_a_total counter\ntowpath_a_total 1\n";
    assert!(problems(good).is_empty());
    for (from, to) in [
        ("A.", "A"),
        (" counter", " gauge"),
        ("towpath_a_total 1", "towpath_b_total 1"),
        ("towpath_a_total 1", "towpath_a_total x"),
        ("towpath_a_total 1", "towpath_a_total{b=\"c} 1"),
        ("towpath_a_total 1", "towpath_a_total 1\ntowpath_a_total 2"),
        ("a_total", "a__total"),
        ("towpath_", "other_"),
    ] {
        let wrong = good.replace(from, to);
        assert!(!problems(&wrong).is_empty(), "{wrong}");
    }
}
