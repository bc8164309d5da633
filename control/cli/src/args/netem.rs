//! `--netem`: configures an emulated link in the syntax of tc-netem(8), for one direction or both.

use std::str::FromStr;

use towpath_link::{Netem, NetemError};

/// Parsed value of `--netem`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetemOption {
    /// Direction to which the link applies, "out" or "in". `None` for both directions.
    way: Option<&'static str>,
    /// Parameters of the link in the syntax of tc-netem(8), validated by the parser of this option.
    pub words: String,
}

impl NetemOption {
    /// Returns whether the link applies to the direction `way`, which is "out" or "in".
    pub fn is_for(&self, way: &str) -> bool {
        self.way.is_none_or(|own| own == way)
    }
}

impl FromStr for NetemOption {
    type Err = NetemError;

    fn from_str(text: &str) -> Result<Self, NetemError> {
        let text = text.trim_start();
        let behind = |way: &'static str| {
            let rest = text.strip_prefix(way)?;
            let is_whole = rest.is_empty() || rest.starts_with(char::is_whitespace);
            is_whole.then_some((Some(way), rest.trim_start()))
        };
        let (way, words) = behind("out").or_else(|| behind("in")).unwrap_or((None, text));
        words.parse::<Netem>()?;
        Ok(Self { way, words: words.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_for_both_ways_unless_it_begins_with_one() {
        let ways = |text: &str| {
            let option = text.parse::<NetemOption>().unwrap();
            assert!(option.words == "delay 5ms" || option.words == "loss 1%", "{option:?}");
            ["out", "in"].map(|way| option.is_for(way))
        };
        assert_eq!(ways("delay 5ms"), [true, true]);
        assert_eq!(ways("out delay 5ms"), [true, false]);
        assert_eq!(ways(" in  loss 1%"), [false, true]);
    }

    #[test]
    fn a_wrong_word_is_named_and_pointed_at() {
        let error = "out delay fast".parse::<NetemOption>().unwrap_err();
        let expected = "\"fast\": expected a time, as 50ms\n  delay fast\n        ^^^^";
        assert_eq!(error.to_string(), expected);
        for text in ["outer delay 5ms", "in", ""] {
            assert!(text.parse::<NetemOption>().is_err(), "{text}");
        }
    }
}
