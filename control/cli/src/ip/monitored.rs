//! Parser for the words of `towpath ip monitor`.

use towpath_model::ReportTopic;

/// Objects of which `ip monitor` prints changes.
#[derive(Debug, PartialEq, Eq)]
pub struct Monitored {
    /// Kinds of objects.
    pub topics: Vec<ReportTopic>,
    /// Name of the only interface; `None` for all.
    pub dev: Option<String>,
    /// Whether each change begins with the kind of its object, such as `[LINK]`.
    pub labels: bool,
}

/// Names of the objects, and the kinds of changes that they select.
const OBJECTS: [(&str, &[ReportTopic]); 6] = [
    ("link", &[ReportTopic::Links]),
    ("address", &[ReportTopic::Addresses]),
    ("route", &[ReportTopic::Routes]),
    ("neighbor", &[ReportTopic::Neighbors]),
    ("neighbour", &[ReportTopic::Neighbors]),
    ("all", &ALL),
];

const ALL: [ReportTopic; 4] =
    [ReportTopic::Links, ReportTopic::Addresses, ReportTopic::Routes, ReportTopic::Neighbors];

/// Returns the words that may follow `ip monitor`, for shell completion.
pub fn words() -> &'static [&'static str] {
    &["all", "link", "addr", "route", "neigh", "label", "dev"]
}

/// Parses the words that follow `ip monitor`.
pub fn parse<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Monitored, String> {
    let mut monitored = Monitored { topics: Vec::new(), dev: None, labels: false };
    while let Some(word) = words.next() {
        if word == "label" {
            monitored.labels = true;
        } else if word == "dev" {
            let name = words.next().ok_or("Command line is not complete. Try option \"help\"")?;
            if monitored.dev.replace(name.to_owned()).is_some() {
                return Err("an argument stands there twice, or \"dev\" is a garbage.".to_owned());
            }
        } else {
            let is_named = |(name, _): &&(&str, _)| !word.is_empty() && name.starts_with(word);
            let (name, topics) = OBJECTS.iter().find(is_named).ok_or_else(|| {
                format!(
                    "Argument \"{word}\" is unknown: expected all, link, addr, route, neigh, \
                         label or dev NAME"
                )
            })?;
            // As in ip(8), `all` also prints the kind of each object.
            monitored.labels |= *name == "all";
            monitored.topics.extend(*topics);
        }
    }
    if monitored.topics.is_empty() {
        monitored.topics.extend(ALL);
    }
    Ok(monitored)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Monitored, String> {
        parse(line.split_whitespace())
    }

    #[test]
    fn objects_may_be_shortened_and_combined() {
        let all = Monitored { topics: ALL.to_vec(), dev: None, labels: false };
        assert_eq!(parsed(""), Ok(all));
        let labelled = Monitored { topics: ALL.to_vec(), dev: None, labels: true };
        assert_eq!(parsed("all"), Ok(labelled));
        let topics = vec![ReportTopic::Routes, ReportTopic::Neighbors];
        let dev = Some("eth0".to_owned());
        assert_eq!(parsed("r dev eth0 neigh"), Ok(Monitored { topics, dev, labels: false }));
        for (wrong, words) in
            [("rule", "\"rule\" is unknown"), ("dev", "not complete"), ("dev a dev b", "twice")]
        {
            assert!(parsed(wrong).unwrap_err().contains(words), "{wrong}");
        }
    }
}
