//! Reports the vocabulary of comments, without ceilings. Text can meet all counted rules and still
//! be hard to read, because it avoids the words that the field uses.

use std::collections::HashMap;

use super::comments::{Sentence, bare};

/// Common words in comments of network software.
const FIELD: [&str; 14] = [
    "maximum",
    "current",
    "avoid",
    "ensure",
    "invalid",
    "using",
    "creates",
    "supported",
    "context",
    "should",
    "we",
    "default",
    "returns",
    "otherwise",
];
/// Words that replace a noun, which the reader has to find.
const RIDDLES: [&str; 14] = [
    "nobody", "stands", "beside", "told", "asked", "others", "puts", "somebody", "whoever",
    "whatever", "who", "what", "nothing", "none",
];
/// First words that indicate a sentence without its own subject.
const FIRST: [&str; 12] = [
    "its", "their", "none", "nothing", "both", "some", "others", "all", "how", "where", "so",
    "here",
];
/// Words that introduce a cause or a condition.
const CAUSES: [&str; 5] = ["if", "because", "since", "otherwise", "therefore"];

/// Prints the profile of all sentences.
pub fn print(sentences: &[Sentence]) {
    let sentences: Vec<Vec<String>> = sentences.iter().map(lower_case).collect();
    let mut counts = HashMap::<&str, usize>::new();
    for word in sentences.iter().flatten() {
        *counts.entry(word).or_default() += 1;
    }
    let total: usize = counts.values().sum();
    println!("{} sentences of comments, {total} words", sentences.len());
    for (title, list) in [("field", &FIELD), ("riddles", &RIDDLES)] {
        let row =
            |word: &&str| format!("{word} {}", counts.get(*word).copied().unwrap_or_default());
        println!("{title:8} {}", list.iter().map(row).collect::<Vec<_>>().join(", "));
    }
    let percent = |count: usize| 100.0 * count as f64 / sentences.len().max(1) as f64;
    let with = |list: &[&str]| {
        let has = |sentence: &&Vec<String>| sentence.iter().any(|word| list.contains(&&**word));
        percent(sentences.iter().filter(has).count())
    };
    let starts =
        |sentence: &&Vec<String>| sentence.first().is_some_and(|it| FIRST.contains(&&**it));
    println!("of 100 sentences (quinn: 1.4, 2.2, 12.8, 8.1):");
    println!("  {:5.1} begin with its, none, how, where, all, so, …", {
        percent(sentences.iter().filter(starts).count())
    });
    println!("  {:5.1} contain what, who, others, nothing, …", with(&RIDDLES[5..]));
    println!("  {:5.1} contain if, because, since, …", with(&CAUSES));
    println!("  {:5.1} contain we", with(&["we"]));
}

/// Returns the words of a sentence in lower case, without punctuation and code spans.
fn lower_case(sentence: &Sentence) -> Vec<String> {
    let is_word = |word: &&String| word.chars().any(char::is_alphanumeric) && !word.contains('`');
    sentence.words.iter().filter(is_word).map(|word| bare(word).to_lowercase()).collect()
}
