//! Splits comments of a Rust source, and the text of a Markdown document, into sentences.
//!
//! A comment ends at a line without one, or with another kind (`//`, `///`, `//!`). A comment after
//! code is separate. Within a comment, blank lines, list items and headings end a sentence, like a
//! full stop. Fenced and indented code, rows of tables, link definitions and citations of RFCs
//! (`//=`, `//#`) are ignored.

/// A sentence of a comment.
#[derive(Debug, PartialEq, Eq)]
pub struct Sentence {
    /// Number of the line on which the sentence begins, counted from 1.
    pub line: usize,
    /// Words as in the source. An inline code span is one word, with [`NO_BREAK`] in place of its
    /// spaces.
    pub words: Vec<String>,
}

/// Character that replaces a space inside an inline code span.
const NO_BREAK: char = '\u{a0}';

/// Returns all sentences of the comments in a source, in order.
pub fn sentences(source: &str) -> Vec<Sentence> {
    let lines = comments(source);
    let is_next = |a: &Line, b: &Line| {
        a.is_alone && b.is_alone && a.number + 1 == b.number && a.kind == b.kind
    };
    lines.chunk_by(is_next).flat_map(Reader::read).collect()
}

/// Returns all sentences of a Markdown document, in order. Ignores quotations and HTML.
pub fn sentences_of_markdown(source: &str) -> Vec<Sentence> {
    let is_text = |line: &str| !line.trim_start().starts_with(['>', '<']);
    let line = |(number, text)| Line {
        number,
        kind: MARKDOWN,
        text: if is_text(text) { text.trim_end() } else { "" },
        is_alone: true,
    };
    Reader::read(&(1..).zip(source.lines()).map(line).collect::<Vec<_>>())
}

/// Kind of the lines of a Markdown document.
const MARKDOWN: &str = "markdown";

/// A line of a comment or of a document.
#[derive(Debug)]
struct Line<'a> {
    number: usize,
    /// Characters between `//` and the text: none, `/` or `!`. [`MARKDOWN`] for documents.
    kind: &'a str,
    text: &'a str,
    /// Whether the line has no code before the comment.
    is_alone: bool,
}

impl<'a> Line<'a> {
    /// Creates a line. `comment` is the text from `//` to the end of the line.
    fn new(comment: &'a str, number: usize, is_alone: bool) -> Self {
        let behind = &comment[2..];
        let is_doc = behind.starts_with(['/', '!']) && !behind.starts_with("//");
        let (kind, text) = behind.split_at(usize::from(is_doc));
        Self { number, kind, text: text.trim_end(), is_alone }
    }

    /// Returns the text without the single space after the slashes.
    fn text(&self) -> &'a str {
        let spaces = usize::from(self.kind != MARKDOWN && self.text.starts_with(' '));
        &self.text[spaces..]
    }
}

/// Returns the line comments of a source. Slashes inside strings and block comments are ignored.
fn comments(source: &str) -> Vec<Line<'_>> {
    let bytes = source.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    let (mut number, mut counted) = (1, 0);
    while at < bytes.len() {
        let rest = &source[at..];
        let len = if rest.starts_with("//") {
            let len = rest.find('\n').unwrap_or(rest.len());
            number += source[counted..at].matches('\n').count();
            counted = at;
            let line = source[..at].rfind('\n').map_or(0, |newline| newline + 1);
            let is_alone = source[line..at].trim().is_empty();
            found.push(Line::new(&rest[..len], number, is_alone));
            len
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if rest.starts_with('"') {
            string(rest)
        } else if rest.starts_with('\'') {
            character(rest)
        } else if is_word(bytes[at]) {
            raw_string(rest).unwrap_or_else(|| word(rest))
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
        at += len;
    }
    found
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns the length of the name, keyword or number at the start of a text.
fn word(text: &str) -> usize {
    text.bytes().position(|byte| !is_word(byte)).unwrap_or(text.len())
}

/// Returns the length of the block comment, which may be nested, at the start of a text.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let two = text.as_bytes().get(at..at + 2);
        depth += i32::from(two == Some(b"/*")) - i32::from(two == Some(b"*/"));
        at += if matches!(two, Some(b"/*" | b"*/")) { 2 } else { 1 };
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Returns the length of the string at the start of a text, including its quotes.
fn string(text: &str) -> usize {
    let mut is_escaped = true;
    for (at, byte) in text.bytes().enumerate() {
        if byte == b'"' && !is_escaped {
            return at + 1;
        }
        is_escaped = at > 0 && byte == b'\\' && !is_escaped;
    }
    text.len()
}

/// Returns the length of the raw string at the start of a text; `None` if there is none.
fn raw_string(text: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| *prefix == &text[..word(text)])?;
    let behind = &text[prefix.len()..];
    let hashes = behind.len() - behind.trim_start_matches('#').len();
    let content = behind[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let len = content.find(&end).map_or(content.len(), |at| at + end.len());
    Some(prefix.len() + hashes + 1 + len)
}

/// Returns the length of the character literal at the start of a text, or of the quote before a
/// lifetime.
fn character(text: &str) -> usize {
    let mut inside = text[1..].chars();
    match inside.next() {
        Some('\\') => {
            let escaped = inside.next().map_or(0, char::len_utf8);
            let end = text.get(2 + escaped..).and_then(|rest| rest.find('\''));
            end.map_or(text.len(), |at| 2 + escaped + at + 1)
        }
        Some(one) if inside.next() == Some('\'') => one.len_utf8() + 2,
        _ => 1,
    }
}

/// Reads one comment.
#[derive(Debug, Default)]
struct Reader {
    sentences: Vec<Sentence>,
    /// Words since the start of the current paragraph, each with its line number.
    words: Vec<(usize, String)>,
    is_in_fence: bool,
    is_in_list: bool,
}

impl Reader {
    fn read(comment: &[Line]) -> Vec<Sentence> {
        let mut reader = Self::default();
        for line in comment {
            reader.line(line);
        }
        reader.end_paragraph();
        reader.sentences
    }

    fn line(&mut self, line: &Line) {
        let (text, is_doc) = (line.text(), !line.kind.is_empty());
        let trimmed = text.trim_start();
        let is_citation = !is_doc && line.text.starts_with(['=', '#']);
        if trimmed.starts_with("```") || trimmed.starts_with("~~~") {
            self.end_paragraph();
            self.is_in_fence = !self.is_in_fence;
        } else if self.is_in_fence {
        } else if trimmed.is_empty() || is_citation || trimmed.starts_with('|') {
            self.end_paragraph();
        } else if let Some(item) = list_item(trimmed) {
            self.end_paragraph();
            self.is_in_list = true;
            self.add(line.number, item);
        } else if let Some(heading) = trimmed.strip_prefix('#').filter(|_| is_doc) {
            self.end_paragraph();
            self.is_in_list = false;
            self.add(line.number, heading.trim_start_matches('#'));
            self.end_paragraph();
        } else if self.words.is_empty() && !self.is_in_list && text.starts_with("    ") {
            // Skip an indented drawing or code block.
        } else if !(trimmed.starts_with('[') && trimmed.contains("]: ")) {
            self.is_in_list &= text.starts_with(' ') || !self.words.is_empty();
            self.add(line.number, trimmed);
        }
    }

    /// Adds the words of a line. Continues a code span that an earlier line or word has opened.
    fn add(&mut self, number: usize, text: &str) {
        for word in text.split_whitespace() {
            match self.words.last_mut() {
                Some((_, open)) if open.matches('`').count() % 2 == 1 => {
                    open.push(NO_BREAK);
                    open.push_str(word);
                }
                _ => self.words.push((number, word.to_owned())),
            }
        }
    }

    fn end_paragraph(&mut self) {
        for sentence in self.words.chunk_by(|(_, word), _| !ends_sentence(word)) {
            let words = sentence.iter().map(|(_, word)| word.clone()).collect();
            self.sentences.push(Sentence { line: sentence[0].0, words });
        }
        self.words.clear();
    }
}

/// Returns the text of a list item without its bullet or number.
fn list_item(text: &str) -> Option<&str> {
    let bullet = ["- ", "* ", "+ "].into_iter().find_map(|bullet| text.strip_prefix(bullet));
    let number = || {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let behind = text[digits..].strip_prefix(['.', ')'])?;
        behind.strip_prefix(' ').filter(|_| (1..=2).contains(&digits))
    };
    bullet.or_else(number)
}

/// Returns whether a word ends a sentence.
fn ends_sentence(word: &str) -> bool {
    const ABBREVIATIONS: &[&str] = &["e.g.", "i.e.", "cf.", "vs.", "etc.", "sec.", "no.", "fig."];
    let bare = word.trim_end_matches([')', '"', '\'', '*', '_', ']', '”', '’']);
    let start = bare.trim_start_matches(['(', '"', '*', '_', '[', '“']).to_lowercase();
    bare.ends_with(['.', '?', '!'])
        && !bare.ends_with("...")
        && !ABBREVIATIONS.contains(&start.as_str())
}

/// Returns a word without brackets, emphasis, and an ending with an apostrophe: "It" of "(It's".
/// Quotes and backticks stay, so that quoted words and names do not count as openers.
pub fn bare(word: &str) -> &str {
    let word = word.trim_start_matches(['(', '*', '_']);
    let end = word.find(['\'', '’', ',', '.', ':', ';', '?', '!', ')', '"', '”', '*', '_']);
    &word[..end.unwrap_or(word.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each sentence as `LINE: WORDS`.
    fn read(source: &str) -> Vec<String> {
        let shown = |sentence: Sentence| format!("{}: {}", sentence.line, sentence.words.join(" "));
        sentences(source).into_iter().map(shown).collect()
    }

    #[test]
    fn sentences_are_joined_across_lines_and_split_at_full_stops() {
        let source = "//! First, which\n//! goes on. Second?\n\nfn f() {} // Behind code\n\
                      // and alone.\n/// Doc (e.g. a\n/// name). Of `a. b` it\n// Another kind";
        let expected = [
            "1: First, which goes on.",
            "2: Second?",
            "4: Behind code",
            "5: and alone.",
            "6: Doc (e.g. a name).",
            "7: Of `a.\u{a0}b` it",
            "8: Another kind",
        ];
        assert_eq!(read(source), expected);
    }

    #[test]
    fn items_headings_and_blank_lines_end_a_sentence() {
        let source = "/// # Errors\n/// Two cases:\n/// - one\n///   that goes on\n\
                      /// 2. another\n///\n/// Last";
        let expected =
            ["1: Errors", "2: Two cases:", "3: one that goes on", "5: another", "7: Last"];
        assert_eq!(read(source), expected);
    }

    #[test]
    fn code_tables_links_and_citations_are_no_sentences() {
        let source = "/// Before\n/// ```text\n/// It is code.\n/// ```\n\
                      /// | It | is |\n/// After\n///\n\
                      ///     It is indented\n/// [`a`]: crate::a\n\
                      //= https://example.org\n//\u{23} It MUST\n// be.";
        assert_eq!(read(source), ["1: Before", "6: After", "12: be."]);
    }

    #[test]
    fn a_document_is_read_without_its_code_and_tables() {
        let source = "# Title\n\nFirst `a.\nb` goes on. Second.\n\n    It is\n\n```\nIt is code.\n\
                      ```\n| It | is |\n|---|---|\n- item\n  goes on\n\n> It is quoted.\n";
        let shown = |it: Sentence| format!("{}: {}", it.line, it.words.join(" "));
        let found: Vec<_> = sentences_of_markdown(source).into_iter().map(shown).collect();
        let expected =
            ["1: Title", "3: First `a.\u{a0}b` goes on.", "4: Second.", "13: item goes on"];
        assert_eq!(found, expected);
    }

    #[test]
    fn slashes_in_strings_and_characters_begin_no_comment() {
        let source = "let a = \"// It \\\" // It\"; let b = r#\"\" // It\"#; let c = '\"'; // one\n\
                      let d = b'\\''; // two\nfn f<'a>(b: &'a str) {} // three\n\
                      let e = br\"\\\"; // four\n\
                      /* // It /* */ // It */ let g = '\u{e4}'; // five\nlet h = \"\\\\\"; // six\n\
                      let r#type = \"\"; // seven\nlet i = \"a\n// It\n\"; // eight";
        let expected = [
            "1: one",
            "2: two",
            "3: three",
            "4: four",
            "5: five",
            "6: six",
            "7: seven",
            "10: eight",
        ];
        assert_eq!(read(source), expected);
    }

    #[test]
    fn a_source_that_ends_within_a_token_is_read() {
        for source in ["//", "///", "\"a", "'\\", "'", "r#\"a", "/* a", "a", ""] {
            assert_eq!(sentences(source), [], "{source}");
        }
    }
}
