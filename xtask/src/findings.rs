//! Whether the tests that `docs/findings.md` names are there: a name that a test once had proves
//! nothing.
//!
//! The outcome of a row names tests in code spans, as `crate: test`, or "Kernel program `case`".
//! Further ones in a list are of the same crate. A word that looks like the name of a test
//! (lower-case words with two underscores or more) is one, too. Modules may stand in front, each of
//! which is a part of the file's path; `module::*` and `start_*` stand for at least one.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};

const LEDGER: &str = "docs/findings.md";
/// The cases of this crate's programs are functions in lists, and need no `#[test]`.
const PROGRAMS: (&str, &str) = ("kernel programs", "api/preload/tests/programs/");
/// A file each, which the test of that name runs.
const ORACLE: (&str, &str) = ("towpath-tests", "tests/programs/oracle/");

/// The tests of each crate: the words of the file's path, and the name.
type Tests = HashMap<String, Vec<(Vec<String>, String)>>;

/// Says which rows name tests that are not there.
pub fn check(root: &Path, faults: &mut Vec<String>) -> Result<()> {
    let tests = tests(root)?;
    let ledger = std::fs::read_to_string(root.join(LEDGER)).context(LEDGER)?;
    for row in ledger.lines().filter(|line| line.starts_with("| ")) {
        let [_, id, _, outcome] = row.splitn(4, '|').collect::<Vec<_>>()[..] else { continue };
        for wrong in missing(outcome, &tests) {
            faults.push(format!("{LEDGER}: {}: {wrong}", id.trim()));
        }
    }
    Ok(())
}

/// Tests that an outcome names and that do not exist.
fn missing(outcome: &str, tests: &Tests) -> Vec<String> {
    let mut of: Option<&str> = None;
    let mut is_list = false;
    let mut wrong = Vec::new();
    let mut parts = outcome.split('`');
    while let (Some(before), Some(span)) = (parts.next(), parts.next()) {
        let (named, name) = match span.split_once(": ") {
            Some((of, name)) if of.starts_with("towpath") => (Some(of), name),
            _ if before.trim_end().trim_end_matches('s').ends_with("ernel program") => {
                (Some(PROGRAMS.0), span)
            }
            _ => (None, span),
        };
        is_list &= matches!(before, ", " | " and " | ", and ");
        let is_test = named.is_some() || is_list || looks_like_a_test(name);
        of = named.or(of);
        is_list = is_test;
        if !is_test {
            continue;
        }
        match of.map(|of| tests.get(of)) {
            None => wrong.push(format!("of which crate is `{name}`?")),
            Some(None) => wrong.push(format!("there is no crate of `{span}`")),
            Some(Some(tests)) if !tests.iter().any(|test| is_named(test, name)) => {
                wrong.push(format!("there is no test `{name}` in {}", of.unwrap_or_default()));
            }
            Some(Some(_)) => {}
        }
    }
    wrong
}

fn looks_like_a_test(name: &str) -> bool {
    let is_path =
        name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_:*".contains(&b));
    is_path && name.rsplit("::").next().is_some_and(|last| last.matches('_').count() >= 2)
}

fn is_named((path, test): &(Vec<String>, String), name: &str) -> bool {
    let mut modules: Vec<&str> = name.split("::").collect();
    let last = modules.pop().unwrap_or_default();
    let fits = match last.strip_suffix('*') {
        Some(start) => test.starts_with(start),
        None => test == last,
    };
    // A file's own tests are in a module `tests`.
    fits && modules
        .iter()
        .all(|module| *module == "tests" || path.iter().any(|part| part == module))
}

fn tests(root: &Path) -> Result<Tests> {
    let metadata = crate::workspace::metadata(root)?;
    let mut crates = Vec::new();
    for package in metadata["packages"].as_array().context("packages")? {
        let folder = crate::tidy::folder_of(root, package["manifest_path"].as_str());
        if let (Some(name), Some(folder)) = (package["name"].as_str(), folder) {
            crates.push((name.to_owned(), format!("{folder}/")));
        }
    }
    let mut tests = Tests::new();
    for file in crate::workspace::tracked(root)? {
        let Some(file) = file.to_str() else { continue };
        let path: Vec<String> = file.split(['/', '.']).map(str::to_owned).collect();
        let mut add = |of: &str, name: &str| {
            tests.entry(of.to_owned()).or_default().push((path.clone(), name.to_owned()));
        };
        if let Some(program) = file.strip_prefix(ORACLE.1) {
            add(ORACLE.0, program.split('.').next().unwrap_or_default());
        }
        if !file.ends_with(".rs") {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(root.join(file)) else { continue };
        if file.starts_with(PROGRAMS.1) {
            cases(&text).for_each(|case| add(PROGRAMS.0, case));
        }
        if let Some((name, _)) = crates.iter().find(|(_, folder)| file.starts_with(folder)) {
            functions(&text).for_each(|test| add(name, test));
        }
    }
    Ok(tests)
}

/// The names in a list of cases: `("name", function)`, which may be on several lines.
fn cases(text: &str) -> impl Iterator<Item = &str> {
    let texts = text.split('(').skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
    texts.filter_map(|rest| Some(rest.split_once("\",")?.0))
}

/// The functions after `#[test]`.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.split("#[test]").skip(1).filter_map(|rest| {
        let (_, rest) = rest.split_once("fn ")?;
        Some(rest.split_once('(')?.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Tests {
        let test = |path: &str, name: &str| {
            (path.split('/').map(str::to_owned).collect::<Vec<_>>(), name.to_owned())
        };
        Tests::from([
            ("towpath-ring".to_owned(), vec![test("src/windows", "memory_comes_back")]),
            (
                PROGRAMS.0.to_owned(),
                vec![test("programs/forks", "sockets"), test("programs/forks", "shut")],
            ),
        ])
    }

    #[test]
    fn names_that_are_there_are_found() {
        for outcome in [
            "mended: `Flow` is a `struct`. `towpath-ring: memory_comes_back`",
            "`towpath-ring: windows::tests::memory_comes_back`, `windows::*`, `memory_*`; \
             see `memory_comes_back`",
            "Kernel programs `sockets`, `forks::shut` and `shut`. `--strict`, \
             `src/lib.rs`, `a word`",
        ] {
            assert_eq!(missing(outcome, &some()), [""; 0], "{outcome}");
        }
    }

    #[test]
    fn names_that_are_not_there_are_told() {
        for outcome in [
            "`towpath-ring: memory_came_back`",
            "`towpath-ring: slots::memory_comes_back`",
            "`towpath-ring: slots::*`",
            "`towpath-rings: memory_comes_back`",
            "`memory_comes_back`, of no crate",
            "mended: kernel program `memory_comes_back`",
            "Kernel programs `sockets`, `shot`",
            "`towpath-ring: memory_comes_back`, and seen by `what_was_not_there`",
        ] {
            assert_eq!(missing(outcome, &some()).len(), 1, "{outcome}");
        }
    }

    #[test]
    fn tests_and_cases_are_read_from_their_files() {
        let text = "#[test]\n#[should_panic]\nfn it_fails() {\n}\nfn no_test() {}\n";
        assert_eq!(functions(text).collect::<Vec<_>>(), ["it_fails"]);
        let text = "&[(\"first\", first), (\n    \"second\",\n    second,\n)];";
        assert_eq!(cases(text).collect::<Vec<_>>(), ["first", "second"]);
    }
}
