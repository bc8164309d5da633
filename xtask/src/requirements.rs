//! Checks that code and requirements of RFCs agree. `docs/requirements/rfcN.toml` lists
//! requirements, each with a status. Sources cite them: `//=` names the section, `//#` quotes the
//! text. A requirement with status `done` must be cited in the code, and each quotation must be
//! part of the RFC's text.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};

const FOLDER: &str = "docs/requirements";
const SOURCE: &str = "https://www.rfc-editor.org/rfc/";

/// Compares the lists with the citations in the sources.
pub fn run(root: &Path) -> Result<()> {
    let mut citations = Vec::new();
    for file in crate::workspace::tracked(root)? {
        if file.extension().is_some_and(|e| e == "rs") {
            // git also lists files that were deleted without a commit.
            let Ok(text) = std::fs::read_to_string(root.join(&file)) else { continue };
            read_citations(&file.display().to_string(), &text, &mut citations);
        }
    }
    let mut faults = Vec::new();
    for item in std::fs::read_dir(root.join(FOLDER)).context(FOLDER)? {
        let path = item?.path();
        let rfc = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let entries = read_list(&text).with_context(|| path.display().to_string())?;
        let of_rfc: Vec<_> = citations.iter().filter(|citation| citation.rfc == rfc).collect();
        let before = faults.len();
        check(&rfc, &entries, &of_rfc, &mut faults);
        if faults.len() == before {
            println!("requirements: {rfc}: {}", summary(&entries));
        }
    }
    if !faults.is_empty() {
        bail!("requirements:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

/// Status of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Status {
    /// Implemented, and cited in the code.
    Done,
    /// Deliberately not followed, with a reason.
    Exception,
    /// Not implemented yet.
    NotYet,
    /// Text that is not a requirement, but may be quoted.
    Passage,
}

/// A requirement, or a passage that may be quoted.
#[derive(Debug)]
struct Entry {
    /// Id of the requirement; empty for a passage.
    id: String,
    sections: Vec<String>,
    status: Status,
    text: String,
}

impl Entry {
    fn from_fields(fields: &BTreeMap<String, String>, passage: bool) -> Result<Self> {
        let field = |name: &str| fields.get(name).cloned().unwrap_or_default();
        let (id, reason) = (field("id"), field("reason"));
        let status = match field("status").as_str() {
            "" if passage => Status::Passage,
            "done" => Status::Done,
            "exception" => Status::Exception,
            "not-yet" => Status::NotYet,
            other => bail!("{id}: no such status: {other:?}"),
        };
        if matches!(status, Status::Exception | Status::NotYet) && reason.is_empty() {
            bail!("{id}: says no reason");
        }
        let sections = field("section").split(", ").map(str::to_owned).collect();
        let text = normal(&field("text"));
        if text.is_empty() || passage != id.is_empty() {
            bail!("{id}: an entry needs a text, and a requirement its id");
        }
        Ok(Self { id, sections, status, text })
    }

    /// Returns whether a quotation belongs to this requirement. If it contains requirement numbers,
    /// it belongs only to these, because several requirements may share a sentence.
    fn is_quoted_by(&self, citation: &Citation) -> bool {
        let quote = &citation.quote;
        self.sections.contains(&citation.section)
            && self.text.contains(quote.as_str())
            && (!has_number(quote) || self.id.is_empty() || names(quote, &self.id))
    }
}

/// A quotation of an RFC in a source file.
#[derive(Debug)]
struct Citation {
    at: String,
    rfc: String,
    section: String,
    /// Type of the citation, such as `exception` or `test`; empty if the code implements the
    /// requirement.
    kind: String,
    quote: String,
}

fn check(rfc: &str, entries: &[Entry], citations: &[&Citation], faults: &mut Vec<String>) {
    for citation in citations {
        if citation.quote.is_empty() || !entries.iter().any(|entry| entry.is_quoted_by(citation)) {
            let Citation { at, section, quote, .. } = citation;
            faults.push(format!("{at}: not in {FOLDER}/{rfc}.toml, section {section}: {quote:?}"));
        }
    }
    for (n, entry) in entries.iter().enumerate() {
        let id = &entry.id;
        if !id.is_empty() && entries[..n].iter().any(|earlier| earlier.id == *id) {
            faults.push(format!("{rfc} {id}: listed twice"));
        }
        let mut of_entry = citations.iter().filter(|citation| entry.is_quoted_by(citation));
        if entry.status == Status::Done && !of_entry.any(|citation| citation.kind.is_empty()) {
            faults.push(format!("{rfc} {id}: done, but cited nowhere: {:?}", entry.text));
        }
    }
}

fn summary(entries: &[Entry]) -> String {
    let mut counts = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.status != Status::Passage) {
        let level = entry.id.split('-').next().unwrap_or_default();
        *counts.entry((level, entry.status)).or_insert(0) += 1;
    }
    let words = counts.into_iter().map(|((level, status), count)| {
        let status = match status {
            Status::Exception => "exceptions",
            Status::NotYet => "not yet",
            Status::Done | Status::Passage => "done",
        };
        format!("{level} {count} {status}")
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Parses a list of requirements. Supports a subset of TOML: arrays of tables, and strings on one
/// line.
fn read_list(text: &str) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut fields = None;
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        match line {
            "" => {}
            "[[requirement]]" | "[[passage]]" => {
                let next = (line == "[[passage]]", BTreeMap::new());
                if let Some((passage, fields)) = fields.replace(next) {
                    entries.push(Entry::from_fields(&fields, passage)?);
                }
            }
            _ if line.starts_with('#') => {}
            _ => {
                let (name, value) = line.split_once(" = ").with_context(|| format!("line {n}"))?;
                let value: String = serde_json::from_str(value)
                    .with_context(|| format!("line {}: a string on one line", n + 1))?;
                let (_, fields) = fields.as_mut().with_context(|| format!("line {}", n + 1))?;
                fields.insert(name.to_owned(), value);
            }
        }
    }
    if let Some((passage, fields)) = fields {
        entries.push(Entry::from_fields(&fields, passage)?);
    }
    Ok(entries)
}

/// Parses the citations of one source file.
fn read_citations(file: &str, text: &str, citations: &mut Vec<Citation>) {
    let mut open = false;
    let mut tests = file.split('/').any(|part| part == "tests" || part == "tests.rs");
    let mut is_test_item = false;
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        // A test module extends to the end of its file. A declaration of a module or field for
        // tests does not.
        tests |= is_test_item && line.contains("mod ") && line.ends_with('{');
        is_test_item = line == "#[cfg(test)]" || is_test_item && line.starts_with("#[");
        if let Some(target) = line.strip_prefix("//= ").and_then(|l| l.strip_prefix(SOURCE)) {
            let (rfc, section) = target.split_once("#section-").unwrap_or((target, ""));
            citations.push(Citation {
                at: format!("{file}:{}", n + 1),
                rfc: rfc.to_owned(),
                section: section.to_owned(),
                kind: if tests { "test".to_owned() } else { String::new() },
                quote: String::new(),
            });
            open = true;
        } else if let Some(citation) = citations.last_mut().filter(|_| open) {
            if let Some(kind) = line.strip_prefix("//= type=") {
                citation.kind = kind.to_owned();
            } else if let Some(words) = line.strip_prefix("//#") {
                citation.quote = normal(&format!("{} {words}", citation.quote));
            } else {
                open = line.starts_with("//= ");
            }
        }
    }
}

fn normal(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns whether a quotation contains a requirement number, such as "(MUST-7)".
fn has_number(quote: &str) -> bool {
    ["MUST-", "SHLD-", "MAY-", "REC-"].iter().any(|level| quote.contains(level))
}

/// Returns whether `quote` contains `id`, and not a longer number that begins with it.
fn names(quote: &str, id: &str) -> bool {
    quote
        .match_indices(id)
        .any(|(at, _)| !quote[at + id.len()..].starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"
        # A comment.
        [[requirement]]
        id = "MUST-1"
        section = "3.1, 3.2"
        status = "done"
        text = "It MUST float (MUST-1), and MUST move (MUST-11)."
        [[requirement]]
        id = "MUST-11"
        section = "3.1"
        status = "not-yet"
        reason = "No horse."
        text = "It MUST float (MUST-1), and MUST move (MUST-11)."
        [[passage]]
        section = "4"
        text = "Boats say \"hoot\"."
    "#;

    fn faults(list: &str, source: &str) -> Vec<String> {
        let (mut citations, mut faults) = (Vec::new(), Vec::new());
        read_citations("boat.rs", source, &mut citations);
        let of_rfc: Vec<_> = citations.iter().filter(|citation| citation.rfc == "rfc1").collect();
        check("rfc1", &read_list(list).unwrap(), &of_rfc, &mut faults);
        faults
    }

    fn cite(section: &str, rest: &str) -> String {
        format!("    //= {SOURCE}rfc1#section-{section}\n    {rest}\n    float();\n")
    }

    #[test]
    fn what_is_done_is_cited_in_the_words_of_the_list() {
        assert_eq!(faults(LIST, &cite("3.2", "//# It MUST\n//# float (MUST-1)")), [""; 0]);
        let all = cite("3.1", "//# MUST float") + &cite("4", "//# say \"hoot\"");
        assert_eq!(faults(LIST, &all), [""; 0]);
        assert_eq!(faults(LIST, "").len(), 1);
    }

    #[test]
    fn another_number_section_or_kind_does_not_count() {
        for rest in ["//# MUST move (MUST-11)", "//= type=test\n//# It MUST float (MUST-1)"] {
            let found = faults(LIST, &cite("3.1", rest));
            assert!(matches!(&found[..], [one] if one.contains("MUST-1: done")), "{found:?}");
        }
        for (section, rest) in [("4", "//# It MUST float"), ("3.1", "//# It sinks"), ("3.1", "")] {
            let found = faults(LIST, &(cite(section, rest) + &cite("3.1", "//# It MUST float")));
            assert!(matches!(&found[..], [one] if one.starts_with("boat.rs:1: ")), "{found:?}");
        }
    }

    #[test]
    fn a_declared_module_of_tests_ends_no_code() {
        let text = format!("#[cfg(test)]\nmod tests;\n{}", cite("3.1", "//# It MUST float"));
        let mut citations = Vec::new();
        read_citations("core/boat/src/float.rs", &text, &mut citations);
        assert_eq!((citations.len(), citations[0].kind.as_str()), (1, ""));
    }

    #[test]
    fn a_field_of_tests_ends_no_code() {
        let cited = cite("3.1", "//# It MUST float");
        let text = format!("struct Boat {{\n    #[cfg(test)]\n    tries: u32,\n}}\n{cited}");
        let mut citations = Vec::new();
        read_citations("core/boat/src/float.rs", &text, &mut citations);
        assert_eq!((citations.len(), citations[0].kind.as_str()), (1, ""));
    }

    #[test]
    fn what_only_a_test_cites_is_not_done() {
        let citation = cite("3.1", "//# It MUST float");
        for (file, text) in [
            ("core/boat/tests/float.rs", citation.clone()),
            ("core/boat/src/net/tests.rs", citation.clone()),
            ("core/boat/src/float.rs", format!("#[cfg(test)]\nmod tests {{\n{citation}}}\n")),
        ] {
            let mut citations = Vec::new();
            read_citations(file, &text, &mut citations);
            assert_eq!((citations.len(), citations[0].kind.as_str()), (1, "test"), "{file}");
        }
    }

    #[test]
    fn a_list_that_does_not_account_for_itself_is_refused() {
        assert!(read_list(&LIST.replace("reason = \"No horse.\"\n", "")).is_err());
        assert!(read_list(&LIST.replace("not-yet", "perhaps")).is_err());
        assert!(read_list(&LIST.replace("id = \"MUST-11\"\n", "")).is_err());
        let twice = LIST.replace("MUST-11\"", "MUST-1\"");
        assert_eq!(faults(&twice, &cite("3.1", "//# It MUST float")).len(), 1);
    }
}
