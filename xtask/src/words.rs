//! Measures comments and documents by those rules of CONTRIBUTING.md that a machine can count.
//!
//! `xtask/words.json` has a ceiling for each count of a crate's folder or a Markdown file. A count
//! above its ceiling is a fault. A count below is mentioned, and `tidy --lower` lowers the ceiling
//! to it. No command raises a ceiling.

mod comments;
mod profile;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use comments::{Sentence, bare};
use serde::{Deserialize, Serialize};

const CEILINGS: &str = "xtask/words.json";

/// First words that are no subject by themselves. Readers must search for the noun, which may be
/// missing.
const OPENERS: &[&str] = &[
    "it", "they", "that", "those", "these", "this", "one", "who", "whoever", "whose", "what",
    "whatever", "which", "nobody", "somebody", "others", "such", "of",
];

/// Maximum number of words in a sentence (CONTRIBUTING.md).
const WORDS_MAX: usize = 25;
/// Maximum line width, as in `rustfmt.toml`, which applies to code only.
const COLUMNS_MAX: usize = 100;
/// Number of places that a fault lists; `tidy --words FOLDER` lists all.
const SHOWN_MAX: usize = 3;

/// Kind of an offence. The order is that of the fields of [`Counts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A comment's sentence begins with one of [`OPENERS`].
    Opener,
    /// A comment's sentence has more than [`WORDS_MAX`] words.
    Long,
    /// A line has more than [`COLUMNS_MAX`] characters.
    ///
    /// Strings, tables and trailing comments count like all others. A line does not count where no
    /// white space could be replaced by a line break: one word, as a URL, behind the comment's
    /// slashes. Citations of RFCs (`//=`, `//#`) do not count either, because their text is
    /// compared with the RFC's.
    Wide,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Opener, Self::Long, Self::Wide];

    fn name(self) -> &'static str {
        match self {
            Self::Opener => "opener",
            Self::Long => "long",
            Self::Wide => "wide",
        }
    }

    fn description(self) -> String {
        match self {
            Self::Opener => "sentences begin with a banned opener".to_owned(),
            Self::Long => format!("sentences have more than {WORDS_MAX} words"),
            Self::Wide => format!("lines have more than {COLUMNS_MAX} columns"),
        }
    }
}

/// A place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Offence {
    file: PathBuf,
    line: usize,
    kind: Kind,
    /// Sentence or line with the offence.
    text: String,
}

/// Offences of a folder, or their ceilings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    openers: usize,
    long_sentences: usize,
    wide_lines: usize,
}

impl Counts {
    fn of(offences: &[Offence]) -> Self {
        let count = |kind| offences.iter().filter(|offence| offence.kind == kind).count();
        Self {
            openers: count(Kind::Opener),
            long_sentences: count(Kind::Long),
            wide_lines: count(Kind::Wide),
        }
    }

    fn get(self, kind: Kind) -> usize {
        match kind {
            Kind::Opener => self.openers,
            Kind::Long => self.long_sentences,
            Kind::Wide => self.wide_lines,
        }
    }

    fn min(self, other: Self) -> Self {
        Self {
            openers: self.openers.min(other.openers),
            long_sentences: self.long_sentences.min(other.long_sentences),
            wide_lines: self.wide_lines.min(other.wide_lines),
        }
    }
}

/// Ceilings by folder. A folder without a row has ceilings of zero.
type Ceilings = BTreeMap<String, Counts>;

/// Offences by folder, in the order of files and lines. Folders without any have an empty list.
type Offences = BTreeMap<String, Vec<Offence>>;

/// Compares the counts with their ceilings. With `lower`, first lowers the ceilings to the counts.
pub fn check(root: &Path, lower: bool) -> Result<Vec<String>> {
    let offences = read(root)?;
    let file = root.join(CEILINGS);
    let text = std::fs::read_to_string(&file).context(CEILINGS)?;
    let mut ceilings: Ceilings = serde_json::from_str(&text).context(CEILINGS)?;
    let lowered = lowered(&ceilings, &offences);
    if lowered != ceilings && lower {
        std::fs::write(&file, shown(&lowered)).context(CEILINGS)?;
        println!("tidy: {CEILINGS} has lower ceilings now");
        ceilings = lowered;
    } else if lowered != ceilings {
        println!(
            "tidy: {} of {CEILINGS} can be lowered: `cargo xtask tidy --lower`",
            different(&lowered, &ceilings).join(", ")
        );
    }
    let mut faults = Vec::new();
    for (folder, found) in &offences {
        let ceiling = ceilings.get(folder).copied().unwrap_or_default();
        let counts = Counts::of(found);
        for kind in Kind::ALL {
            if counts.get(kind) > ceiling.get(kind) {
                let found: Vec<_> = found.iter().filter(|offence| offence.kind == kind).collect();
                faults.push(fault(root, folder, &found, ceiling.get(kind)));
            }
        }
    }
    Ok(faults)
}

/// Prints all offences of the folders at or below a path.
pub fn list(root: &Path, folder: &str) -> Result<()> {
    let mut offences = read(root)?;
    let path: PathBuf =
        Path::new(folder).components().filter(|part| *part != Component::CurDir).collect();
    offences.retain(|name, _| Path::new(name).starts_with(&path));
    ensure!(
        !offences.is_empty(),
        "--words {folder}: expected a crate's folder as `core/tcp`, `core` for all in it, or a \
         Markdown file"
    );
    let mut text = String::new();
    for offence in offences.values().flatten() {
        writeln!(text, "{}", shown_place(offence, usize::MAX))?;
    }
    for (name, found) in &offences {
        let counts = Counts::of(found);
        let each = Kind::ALL.map(|kind| format!("{} {}", counts.get(kind), kind.description()));
        writeln!(text, "{name}: {}", each.join("; "))?;
    }
    match std::io::stdout().write_all(text.as_bytes()) {
        // The reader, such as head(1), has closed the pipe.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}

/// Prints how often comments use common words of the field, and words that stand for riddles.
pub fn profile(root: &Path) -> Result<()> {
    let mut sentences = Vec::new();
    for file in crate::workspace::tracked(root)? {
        let is_source = file.extension().is_some_and(|e| e == "rs");
        let Some(text) = is_source.then(|| std::fs::read_to_string(root.join(&file)).ok()) else {
            continue;
        };
        sentences.extend(comments::sentences(&text.unwrap_or_default()));
    }
    profile::print(&sentences);
    Ok(())
}

/// Reads all sources that git tracks, or that are new and not ignored.
fn read(root: &Path) -> Result<Offences> {
    let files = crate::workspace::tracked(root)?;
    let crates: BTreeSet<_> = files.iter().filter_map(|file| crate_folder(file)).collect();
    let mut offences: Offences =
        crates.iter().map(|folder| (folder.display().to_string(), Vec::new())).collect();
    let of_kind = |kind| move |file: &&PathBuf| file.extension().is_some_and(|e| e == kind);
    for file in files.iter().filter(of_kind("md")) {
        let Ok(text) = std::fs::read_to_string(root.join(file)) else { continue };
        let sentences = comments::sentences_of_markdown(&text);
        offences.insert(file.display().to_string(), in_sentences(file, &sentences));
    }
    for file in files.iter().filter(of_kind("rs")) {
        // Examples in the root folder belong to a crate in another folder.
        let folder = file.ancestors().find(|folder| crates.contains(folder)).or(file.parent());
        let folder = folder.with_context(|| format!("{}: in no crate", file.display()))?;
        // git also lists files that were deleted without a commit.
        let Ok(text) = std::fs::read_to_string(root.join(file)) else { continue };
        offences.entry(folder.display().to_string()).or_default().extend(in_source(file, &text));
    }
    Ok(offences)
}

/// Returns the folder of a crate's manifest; `None` for the workspace's own manifest.
fn crate_folder(file: &Path) -> Option<&Path> {
    let folder = file.parent().filter(|_| file.ends_with("Cargo.toml"))?;
    Some(folder).filter(|folder| !folder.as_os_str().is_empty())
}

fn in_source(file: &Path, source: &str) -> Vec<Offence> {
    let mut found = in_sentences(file, &comments::sentences(source));
    for (line, text) in (1..).zip(source.lines()).filter(|(_, line)| is_wide(line)) {
        let text = text.trim().to_owned();
        found.push(Offence { file: file.to_owned(), line, kind: Kind::Wide, text });
    }
    found.sort_by_key(|offence| offence.line);
    found
}

fn in_sentences(file: &Path, sentences: &[Sentence]) -> Vec<Offence> {
    let mut found = Vec::new();
    for sentence in sentences {
        let is_long = words(sentence) > WORDS_MAX;
        let kinds = [(has_opener(sentence), Kind::Opener), (is_long, Kind::Long)];
        for (_, kind) in kinds.into_iter().filter(|(is_offence, _)| *is_offence) {
            let text = sentence.words.join(" ");
            found.push(Offence { file: file.to_owned(), line: sentence.line, kind, text });
        }
    }
    found
}

/// Returns whether a sentence, or a part of it, begins with one of [`OPENERS`]. A part after a
/// colon or semicolon counts only if it begins with a capital letter.
fn has_opener(sentence: &Sentence) -> bool {
    let words = &sentence.words;
    (0..words.len()).any(|n| {
        let first = bare(&words[n]);
        let begins = match n.checked_sub(1).map(|before| &words[before]) {
            None => true,
            Some(before) => before.ends_with([':', ';']) && first.starts_with(char::is_uppercase),
        };
        let is_so = || {
            let second = words.get(n + 1).map(|word| bare(word));
            first.eq_ignore_ascii_case("so") && matches!(second, Some("do" | "does"))
        };
        begins && (OPENERS.iter().any(|opener| first.eq_ignore_ascii_case(opener)) || is_so())
    })
}

/// Returns the number of words in a sentence. Dashes, arrows and operators are not counted.
fn words(sentence: &Sentence) -> usize {
    sentence.words.iter().filter(|word| word.contains(char::is_alphanumeric)).count()
}

fn is_wide(line: &str) -> bool {
    let text = line.trim();
    let is_citation = text.starts_with("//=") || text.starts_with("//#");
    let behind = text.trim_start_matches(['/', '!']).trim_start();
    line.chars().count() > COLUMNS_MAX && !is_citation && behind.contains(char::is_whitespace)
}

/// Returns the ceilings, lowered to the counts that are below them. Entries of missing folders are
/// removed.
fn lowered(ceilings: &Ceilings, offences: &Offences) -> Ceilings {
    let lower = |(folder, ceiling): (&String, &Counts)| {
        let counts = Counts::of(offences.get(folder)?);
        Some((folder.clone(), ceiling.min(counts)))
    };
    ceilings.iter().filter_map(lower).collect()
}

/// Returns the folders whose ceilings differ.
fn different(lowered: &Ceilings, ceilings: &Ceilings) -> Vec<String> {
    let differs = |folder: &&String| lowered.get(*folder) != ceilings.get(*folder);
    ceilings.keys().filter(differs).cloned().collect()
}

/// Returns the text of the file. Each folder has its own line, so that branches that lower
/// different ceilings do not conflict.
fn shown(ceilings: &Ceilings) -> String {
    let row = |(folder, counts): (&String, &Counts)| {
        let Counts { openers, long_sentences, wide_lines } = counts;
        format!(
            "  \"{folder}\": {{ \"openers\": {openers}, \"long_sentences\": {long_sentences}, \
             \"wide_lines\": {wide_lines} }}"
        )
    };
    format!("{{\n{}\n}}\n", ceilings.iter().map(row).collect::<Vec<_>>().join(",\n"))
}

/// Returns the message about a count above its ceiling. `found` contains all offences of the kind
/// in the folder.
fn fault(root: &Path, folder: &str, found: &[&Offence], ceiling: usize) -> String {
    let description = found[0].kind.description();
    let mut text =
        format!("{folder}: {} {description}, at most {ceiling} are allowed", found.len());
    let new = newest(root, found);
    if new.is_empty() {
        let (file, count) = worst(found);
        let _ = write!(text, " ({CEILINGS}); {count} of them in {}", file.display());
    } else {
        let _ = write!(text, " ({CEILINGS}); on lines that changed:");
        for offence in new.iter().take(SHOWN_MAX) {
            let _ = write!(text, "\n    {}", shown_place(offence, 100));
        }
    }
    let _ =
        write!(text, "\n    `cargo xtask tidy --words {folder}` lists all; rewrite some of them");
    text
}

/// Returns the file with the most offences, and their number.
fn worst<'a>(found: &[&'a Offence]) -> (&'a Path, usize) {
    let mut files = BTreeMap::<&Path, usize>::new();
    for offence in found {
        *files.entry(&offence.file).or_default() += 1;
    }
    files.into_iter().max_by_key(|(_, count)| *count).expect("a fault has an offence")
}

fn shown_place(offence: &Offence, chars_max: usize) -> String {
    let Offence { file, line, kind, text } = offence;
    let cut: String = text.chars().take(chars_max).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("{}:{line}: {}: {cut}{dots}", file.display(), kind.name())
}

/// Returns offences on uncommitted lines. If there are none, returns those on lines changed since
/// the ceilings last changed. Empty if git fails, as in a shallow clone.
fn newest<'a>(root: &Path, found: &[&'a Offence]) -> Vec<&'a Offence> {
    let ceilings = git(root, &["log", "-1", "--format=%H", "--", CEILINGS]);
    let untracked = git(root, &["ls-files", "--others", "--exclude-standard"]).unwrap_or_default();
    for commit in ["HEAD", ceilings.as_deref().unwrap_or_default().trim()] {
        let diff = git(root, &["diff", "-U0", "--no-ext-diff", "--no-color", commit, "--"]);
        let changed = changed(&diff.unwrap_or_default());
        let is_new = |offence: &Offence| {
            let lines = changed.get(&offence.file);
            lines.is_some_and(|lines| lines.iter().any(|lines| lines.contains(&offence.line)))
                || untracked.lines().any(|file| Path::new(file) == offence.file)
        };
        let new: Vec<_> = found.iter().copied().filter(|offence| is_new(offence)).collect();
        if !new.is_empty() {
            return new;
        }
    }
    Vec::new()
}

/// Returns the lines of files that a diff without context adds, by their current numbers.
fn changed(diff: &str) -> BTreeMap<PathBuf, Vec<RangeInclusive<usize>>> {
    let mut changed = BTreeMap::<_, Vec<_>>::new();
    let mut file = PathBuf::new();
    for line in diff.lines() {
        if let Some(name) = line.strip_prefix("+++ b/") {
            file = PathBuf::from(name);
        } else if let Some(added) = line.strip_prefix("@@ ").and_then(added) {
            changed.entry(file.clone()).or_default().push(added);
        }
    }
    changed
}

/// Returns the lines that a hunk adds, by its header without the leading `@@`: `-12,0 +13,2 @@`.
fn added(head: &str) -> Option<RangeInclusive<usize>> {
    let (_, behind) = head.split_once('+')?;
    let range = behind.split(' ').next()?;
    let (first, count) = range.split_once(',').unwrap_or((range, "1"));
    let (first, count): (usize, usize) = (first.parse().ok()?, count.parse().ok()?);
    Some(first..=(first + count).checked_sub(1)?)
}

/// Returns the output of git; `None` if the command fails.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<(usize, Kind)> {
        let found = in_source(Path::new("a.rs"), source);
        found.into_iter().map(|offence| (offence.line, offence.kind)).collect()
    }

    #[test]
    fn openers_are_found_at_the_beginning_of_each_sentence() {
        let source = "// It is. `It` is; the run (It's) is: That is.\n// Of these.\n\n\
                      /// So does *this*.\n\
                      /// - what\n/// So it is. Iterators, Thatcher, one-way: it is what it is.\n\
                      // SAFETY: They are.\nlet a = \"// It\"; // (This) one";
        let opener = |line| (line, Kind::Opener);
        assert_eq!(found(source), [1, 1, 2, 4, 5, 7, 8].map(opener));
    }

    #[test]
    fn a_sentence_of_more_than_25_words_is_long() {
        let of = |words: usize| format!("//! {}\n//! – b.\n//! End", "a ".repeat(words - 1));
        assert_eq!(found(&of(25)), []);
        assert_eq!(found(&of(26)), [(1, Kind::Long)]);
        assert_eq!(found(&format!("// `{}`.", "a ".repeat(26))), []);
    }

    #[test]
    fn a_line_of_more_than_100_columns_is_wide_where_it_can_be_broken() {
        let wide = |start: &str| format!("{start}{}", "ä".repeat(100 - start.chars().count()));
        for start in ["", "let a = ", "// a "] {
            assert_eq!(found(&wide(start)), []);
        }
        for start in ["let a = ", "    // a ", "\"a ", "// ``a b` "] {
            assert_eq!(found(&format!("\n{}ä", wide(start))), [(2, Kind::Wide)], "{start}");
        }
        for start in ["    /// ", "//! ", "//= a ", "    //# a "] {
            assert_eq!(found(&format!("{}ä", wide(start))), [], "{start}");
        }
    }

    fn offences(counts: &[(&str, Counts)]) -> Offences {
        let repeat = |kind, count| {
            (0..count).map(move |line| Offence { file: "a".into(), line, kind, text: "".into() })
        };
        let all = |counts: &Counts| {
            Kind::ALL.into_iter().flat_map(|kind| repeat(kind, counts.get(kind))).collect()
        };
        counts.iter().map(|(folder, counts)| (folder.to_string(), all(counts))).collect()
    }

    #[test]
    fn ceilings_fall_and_never_rise() {
        let counts =
            |openers, long_sentences, wide_lines| Counts { openers, long_sentences, wide_lines };
        let before: Ceilings =
            [("a", counts(3, 3, 3)), ("b", counts(1, 0, 2)), ("gone", counts(1, 1, 1))]
                .map(|(folder, counts)| (folder.to_owned(), counts))
                .into();
        let found =
            offences(&[("a", counts(2, 3, 4)), ("b", counts(1, 0, 2)), ("new", counts(1, 1, 1))]);
        let after = lowered(&before, &found);
        assert_eq!(different(&after, &before), ["a", "gone"]);
        assert_eq!(
            shown(&after),
            "{\n  \"a\": { \"openers\": 2, \"long_sentences\": 3, \"wide_lines\": 3 },\n  \
             \"b\": { \"openers\": 1, \"long_sentences\": 0, \"wide_lines\": 2 }\n}\n"
        );
        assert_eq!(serde_json::from_str::<Ceilings>(&shown(&after)).unwrap(), after);
    }

    #[test]
    fn changed_lines_are_those_that_a_diff_adds() {
        let diff = "+++ b/a.rs\n@@ -1 +2 @@ fn f()\n@@ -4,0 +6,3 @@\n+++ b/b.rs\n@@ -9,2 +8,0 @@\n";
        let changed = changed(diff);
        assert_eq!(changed[Path::new("a.rs")], [2..=2, 6..=8]);
        assert!(changed[Path::new("b.rs")].iter().all(|lines| lines.is_empty()));
    }

    #[test]
    fn a_source_belongs_to_the_innermost_crate() {
        assert_eq!(crate_folder(Path::new("a/b/Cargo.toml")), Some(Path::new("a/b")));
        assert_eq!(crate_folder(Path::new("Cargo.toml")), None);
        assert_eq!(crate_folder(Path::new("a/b.rs")), None);
    }
}
