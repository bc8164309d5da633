//! Parses an access list in text form, with one rule or default per line.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeMap;

use crate::error::{RuleError, RulesError};
use crate::fields::{Hook, Hooks};
use crate::rule::{Action, Rule, RuleList};
use crate::values;
use crate::words::{KEYS, LOG, RuleDraft};

/// Word of a line, with its column in characters.
#[derive(Debug, Clone, Copy)]
struct Word<'a> {
    column: usize,
    text: &'a str,
}

impl RuleList {
    /// Parses a text in the grammar of `docs/acl.md`.
    ///
    /// ```
    /// use towpath_filter::RuleList;
    ///
    /// let text = "
    ///     acl add id 10 src 10.0.0.0/8 dport 80-90 in eth0 action drop   # No web from there.
    ///     acl add id 20 proto tcp flags syn,!ack dst 2001:db8::/32 action reject log rate 10/s
    ///     acl default action accept
    /// ";
    /// assert_eq!(RuleList::parse(text)?.len(), 2);
    ///
    /// let error = RuleList::parse("acl add id 10 dprot 80 action drop").unwrap_err();
    /// let said = "line 1, column 15: unknown word \"dprot\"; did you mean \"dport\"?";
    /// assert_eq!(error.to_string(), said);
    /// # Ok::<(), towpath_filter::RulesError>(())
    /// ```
    ///
    /// # Errors
    /// Returns the first error of the text.
    pub fn parse(text: &str) -> Result<Self, RulesError> {
        let mut list = Self::new();
        let mut lines = BTreeMap::new();
        let mut defaults = [None; Hook::ALL.len()];
        for (n, line) in text.lines().enumerate() {
            let (line, words) = (n + 1, words_of(line));
            let end = end_of(&words);
            let Some((verb, rest)) = verb_of(&words) else { continue };
            match verb.text {
                "add" => {
                    let rule = rule_of(rest, line, end)?;
                    if let Some(earlier) = lines.insert(rule.id, line) {
                        let what = format!("id {} is also that of line {earlier}", rule.id);
                        let error = RuleError::new(what, "expected another number");
                        return Err(error.at(line, verb.column));
                    }
                    list.insert(rule);
                }
                "default" => {
                    let (hooks, action) = default_of(rest, line, end)?;
                    for hook in hooks.iter() {
                        if let Some(earlier) = defaults[hook as usize].replace(line) {
                            let what =
                                format!("hook {} has a default in line {earlier}", hook.name());
                            let error = RuleError::new(what, "expected one default for each hook");
                            return Err(error.at(line, verb.column));
                        }
                    }
                    list.set_default(hooks, action);
                }
                _ => {
                    let error = RuleError::unknown("word", verb.text, &["acl", "add", "default"]);
                    return Err(error.at(line, verb.column));
                }
            }
        }
        Ok(list)
    }
}

/// Splits a line into words, and removes the comment at its end.
fn words_of(line: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        rest = rest.trim_start();
        if rest.is_empty() || rest.starts_with('#') {
            return words;
        }
        let len = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let before = line.len() - rest.len();
        words.push(Word { column: line[..before].chars().count() + 1, text: &rest[..len] });
        rest = &rest[len..];
    }
}

/// Returns the column after the last word, where an error about a missing word is reported.
fn end_of(words: &[Word<'_>]) -> usize {
    words.last().map_or(1, |word| word.column + word.text.chars().count())
}

/// Returns the verb of a line, which an optional `acl` may precede, and the words after it. Returns
/// `None` for an empty line.
fn verb_of<'a, 'w>(words: &'w [Word<'a>]) -> Option<(Word<'a>, &'w [Word<'a>])> {
    let (first, rest) = words.split_first()?;
    match (first.text, rest.split_first()) {
        ("acl", Some((second, rest))) => Some((*second, rest)),
        _ => Some((*first, rest)),
    }
}

/// Calls `take` for each pair of key and value in `words`.
fn pairs<'a>(
    words: &[Word<'a>],
    line: usize,
    mut take: impl FnMut(Word<'a>, Word<'a>) -> Result<(), RuleError>,
) -> Result<(), RulesError> {
    let mut words = words.iter();
    while let Some(key) = words.next() {
        let value = match key.text {
            LOG => Some(&Word { column: key.column, text: "" }),
            known if KEYS.contains(&known) => words.next(),
            _ => Some(key),
        };
        let Some(value) = value else {
            let what = format!("\"{}\" is without its value", key.text);
            return Err(RuleError::new(what, "expected a word behind it").at(line, key.column));
        };
        take(*key, *value).map_err(|error| error.at(line, value.column))?;
    }
    Ok(())
}

/// Parses a rule from the words after `add`.
fn rule_of(words: &[Word<'_>], line: usize, end: usize) -> Result<Rule, RulesError> {
    let mut draft = RuleDraft::default();
    pairs(words, line, |key, value| draft.take(key.text, value.text))?;
    draft.finish().map_err(|error| error.at(line, end))
}

/// Parses hooks and their default action from the words after `default`.
fn default_of(words: &[Word<'_>], line: usize, end: usize) -> Result<(Hooks, Action), RulesError> {
    let (mut hooks, mut action) = (None, None);
    pairs(words, line, |key, value| {
        let is_first = match key.text {
            "hook" => hooks.replace(values::hooks(value.text)?).is_none(),
            "action" => action.replace(values::action(value.text)?).is_none(),
            _ => return Err(RuleError::unknown("word", key.text, &["hook", "action"])),
        };
        if is_first {
            return Ok(());
        }
        Err(RuleError::new(format!("\"{}\" is there twice", key.text), "expected each word once"))
    })?;
    let missing = || RuleError::new("\"action\" is missing", "expected accept, drop or reject");
    let action = action.ok_or_else(|| missing().at(line, end))?;
    Ok((hooks.unwrap_or(Hooks::INCOMING), action))
}

/// Parses a filter rule from the words that follow `acl add`.
impl FromStr for Rule {
    type Err = RulesError;

    fn from_str(text: &str) -> Result<Self, RulesError> {
        let mut lines = text.lines();
        let words = words_of(lines.next().unwrap_or_default());
        if lines.any(|line| !words_of(line).is_empty()) {
            let error = RuleError::new("a second line follows", "expected one rule in one line");
            return Err(error.at(2, 1));
        }
        rule_of(&words, 1, end_of(&words))
    }
}

/// Formats the access list as text that [`RuleList::parse`] accepts.
impl fmt::Display for RuleList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rule in self.iter() {
            writeln!(f, "acl add {rule}")?;
        }
        let others = Hook::ALL.into_iter().filter(|hook| self.default_of(*hook) != Action::Accept);
        for hook in others {
            let action = values::action_name(self.default_of(hook));
            writeln!(f, "acl default hook {} action {action}", hook.name())?;
        }
        Ok(())
    }
}
