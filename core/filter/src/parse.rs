//! Parses an access list in text form, with one rule or default per line.

use core::fmt;
use core::str::FromStr;
use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::error::{RuleError, RulesError};
use crate::fields::{Hook, Hooks};
use crate::rule::{Action, Rule, RuleList};
use crate::sets::{SetDraft, SetMembers};
use crate::values;
use crate::words::{KEYS, LOG, LOG_RATE, RuleDraft};

/// Word of a line, with its column in characters.
#[derive(Debug, Clone, Copy)]
struct Word<'a> {
    column: usize,
    text: &'a str,
}

/// Value of a key, which may be made of two words.
#[derive(Debug, Clone)]
struct KeyValue<'a> {
    column: usize,
    text: Cow<'a, str>,
}

impl<'a> From<&Word<'a>> for KeyValue<'a> {
    fn from(word: &Word<'a>) -> Self {
        Self { column: word.column, text: Cow::Borrowed(word.text) }
    }
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
    ///     acl set office 192.0.2.0/24,2001:db8::/48
    ///     acl add id 30 src @office proto tcp dport 80,443,8000-8100 action accept
    ///     acl default action accept
    /// ";
    /// assert_eq!(RuleList::parse(text)?.len(), 3);
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
        let mut draft = ListDraft::default();
        for (n, line) in text.lines().enumerate() {
            draft.read(n + 1, &words_of(line))?;
        }
        draft.finish()
    }
}

/// Partially parsed list, with the places of its parts for error messages.
#[derive(Default)]
struct ListDraft {
    list: RuleList,
    /// Named sets. A long set may have several lines.
    sets: BTreeMap<String, SetDraft>,
    /// Line and column of each rule by number.
    places: BTreeMap<u32, (usize, usize)>,
    /// Line of the default of each hook.
    defaults: [Option<usize>; Hook::ALL.len()],
}

impl ListDraft {
    fn read(&mut self, line: usize, words: &[Word<'_>]) -> Result<(), RulesError> {
        let end = end_of(words);
        let Some((verb, rest)) = verb_of(words) else { return Ok(()) };
        let done = match verb.text {
            "add" => self.add(rule_of(rest, line, end)?, line, verb.column),
            "default" => self.set_default(default_of(rest, line, end)?, line),
            "set" => {
                let (name, members) = members_of(rest, line, end)?;
                self.sets.entry(name).or_default().add(&members)
            }
            _ => Err(RuleError::unknown("word", verb.text, &["acl", "add", "default", "set"])),
        };
        done.map_err(|error| error.at(line, verb.column))
    }

    fn add(&mut self, rule: Rule, line: usize, column: usize) -> Result<(), RuleError> {
        if let Some((earlier, _)) = self.places.insert(rule.id, (line, column)) {
            let what = format!("id {} is also that of line {earlier}", rule.id);
            return Err(RuleError::new(what, "expected another number"));
        }
        self.list.insert(rule);
        Ok(())
    }

    fn set_default(&mut self, default: HookDefault, line: usize) -> Result<(), RuleError> {
        for hook in default.hooks.iter() {
            if let Some(earlier) = self.defaults[hook as usize].replace(line) {
                let what = format!("hook {} has a default in line {earlier}", hook.name());
                return Err(RuleError::new(what, "expected one default for each hook"));
            }
        }
        self.list.set_default(default.hooks, default.action);
        Ok(())
    }

    /// Adds the sets to the list, checks the sets of all rules, and returns the list.
    fn finish(self) -> Result<RuleList, RulesError> {
        let Self { mut list, sets, places, .. } = self;
        for (name, draft) in sets {
            list.set_members(&name, draft.finish());
        }
        for rule in list.iter() {
            let (line, column) = places.get(&rule.id).copied().unwrap_or((1, 1));
            list.check_sets(rule).map_err(|error| error.at(line, column))?;
        }
        Ok(list)
    }
}

/// Hooks with their default action.
#[derive(Debug, Clone, Copy)]
struct HookDefault {
    hooks: Hooks,
    action: Action,
}

/// Splits a line into words, and removes the comment at its end.
fn words_of(line: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let (mut rest, mut column) = (line, 1);
    loop {
        let (blanks, words_left) = rest.split_at(rest.len() - rest.trim_start().len());
        if words_left.is_empty() || words_left.starts_with('#') {
            return words;
        }
        column += blanks.chars().count();
        let len = words_left.find(char::is_whitespace).unwrap_or(words_left.len());
        let text = &words_left[..len];
        words.push(Word { column, text });
        column += text.chars().count();
        rest = &words_left[len..];
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
fn pairs(
    words: &[Word<'_>],
    line: usize,
    mut take: impl FnMut(&str, &str) -> Result<(), RuleError>,
) -> Result<(), RulesError> {
    let mut words = words.iter().peekable();
    while let Some(key) = words.next() {
        let lacks_value = || {
            let what = format!("\"{}\" is without its value", key.text);
            RuleError::new(what, "expected a word behind it").at(line, key.column)
        };
        let (name, value) = match key.text {
            LOG => {
                take(LOG, "").map_err(|error| error.at(line, key.column))?;
                if words.next_if(|word| word.text == "rate").is_none() {
                    continue;
                }
                (LOG_RATE, KeyValue::from(words.next().ok_or_else(lacks_value)?))
            }
            "action" => {
                let action = words.next().ok_or_else(lacks_value)?;
                let number = if action.text == "mark" { words.next() } else { None };
                let two = |number: &Word<'_>| KeyValue {
                    column: number.column,
                    text: format!("{} {}", action.text, number.text).into(),
                };
                ("action", number.map_or_else(|| KeyValue::from(action), two))
            }
            known if KEYS.contains(&known) => {
                (known, KeyValue::from(words.next().ok_or_else(lacks_value)?))
            }
            unknown => (unknown, KeyValue::from(key)),
        };
        take(name, &value.text).map_err(|error| error.at(line, value.column))?;
    }
    Ok(())
}

/// Parses a rule from the words after `add`.
fn rule_of(words: &[Word<'_>], line: usize, end: usize) -> Result<Rule, RulesError> {
    let mut draft = RuleDraft::default();
    pairs(words, line, |key, value| draft.take(key, value))?;
    draft.finish().map_err(|error| error.at(line, end))
}

/// Parses the name and members of a set from the words after `set`.
fn members_of(
    words: &[Word<'_>],
    line: usize,
    end: usize,
) -> Result<(String, SetMembers), RulesError> {
    let missing = |what: &str, expected: &str| RuleError::new(what, expected).at(line, end);
    let Some((name, rest)) = words.split_first() else {
        return Err(missing("the name of the set is missing", "expected \"set NAME MEMBERS\""));
    };
    let of_word = |word: &Word<'_>, error: RuleError| error.at(line, word.column);
    let known = values::set_name(name.text).map_err(|error| of_word(name, error))?;
    if rest.is_empty() {
        let expected = "expected prefixes, ports or none";
        return Err(missing("the members of the set are missing", expected));
    }
    let mut all = SetDraft::default();
    for word in rest {
        let members = values::members(word.text).map_err(|error| of_word(word, error))?;
        all.add(&members).map_err(|error| of_word(word, error))?;
    }
    Ok((known, all.finish()))
}

/// Parses hooks and their default action from the words after `default`.
fn default_of(words: &[Word<'_>], line: usize, end: usize) -> Result<HookDefault, RulesError> {
    let (mut hooks, mut action) = (None, None);
    pairs(words, line, |key, value| {
        let is_first = match key {
            "hook" => hooks.replace(values::hooks(value)?).is_none(),
            "action" => action.replace(values::action(value)?).is_none(),
            _ => return Err(RuleError::unknown("word", key, &["hook", "action"])),
        };
        if is_first {
            return Ok(());
        }
        Err(RuleError::new(format!("\"{key}\" is there twice"), "expected each word once"))
    })?;
    let missing = || RuleError::new("\"action\" is missing", "expected accept, drop or reject");
    let action = action.ok_or_else(|| missing().at(line, end))?;
    Ok(HookDefault { hooks: hooks.unwrap_or(Hooks::INCOMING), action })
}

/// Returns the rule that a line of an access list adds; `None` if the line has no valid rule.
#[must_use]
pub fn rule_of_line(line: &str) -> Option<Rule> {
    let words = words_of(line);
    let (verb, rest) = verb_of(&words)?;
    if verb.text == "add" { rule_of(rest, 1, end_of(&words)).ok() } else { None }
}

/// Parses prefixes or ports with commas between them, or `none`.
impl FromStr for SetMembers {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        values::members(text)
    }
}

/// Formats the members as text that can be parsed.
impl fmt::Display for SetMembers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&values::member_words(self))
    }
}

/// Checks the name of a set.
///
/// # Errors
/// Returns an error if the name has other characters than letters, digits, `-` and `_`, or too
/// many.
pub fn check_set_name(name: &str) -> Result<(), RuleError> {
    values::set_name(name).map(drop)
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
        for (name, members) in self.sets() {
            writeln!(f, "acl set {name} {members}")?;
        }
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
