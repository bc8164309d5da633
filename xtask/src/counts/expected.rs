//! The numbers that counts are held to: `xtask/counts.json`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::workloads::Unit;

/// A number that was counted.
#[derive(Clone)]
pub struct Counted {
    /// What of whom: one line of the file.
    pub what: String,
    pub each: f64,
    pub unit: Unit,
    /// Of bytes that are copied.
    pub is_kib: bool,
}

/// The file.
pub struct Expected {
    path: PathBuf,
    numbers: BTreeMap<String, Number>,
    /// What cannot be counted here, of which the numbers stay: the ends of their names.
    left_out: Vec<&'static str>,
}

/// What is expected, and how far it may be from that.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Number {
    each: f64,
    within: f64,
}

impl Number {
    /// As it is written.
    fn of(counted: &Counted) -> Self {
        let Counted { each, unit, is_kib, .. } = *counted;
        // In lockstep counts are the same each time but for what happens by the clock. How bulk data comes in portions is
        // not the same; and the same code takes a few instructions more or less with each change of the code around it.
        let within = match unit {
            // Bytes are as many in whatever portions they come; what is known of each portion is little beside them.
            Unit::Request | Unit::Connection if is_kib => (each * 0.05).max(0.05),
            Unit::Mib if is_kib => (each * 0.02).max(1.),
            Unit::Request => (each * 0.06).max(0.15),
            Unit::Connection => (each * 0.05).max(0.2),
            Unit::Mib => (each * 0.15).max(1.),
            Unit::Packet => each * 0.02,
        };
        Self { each, within }
    }
}

impl Expected {
    pub fn read(root: &Path) -> Result<Self> {
        let path = root.join("xtask/counts.json");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let json: serde_json::Value = serde_json::from_str(&text)?;
        let mut numbers = BTreeMap::new();
        for (what, number) in json.as_object().context("an object")? {
            let field =
                |name: &str| number[name].as_f64().with_context(|| format!("{what}: {name}"));
            let number = Number { each: field("each")?, within: field("within")? };
            ensure!(number.within >= 0., "{what}: a tolerance is not negative");
            numbers.insert(what.clone(), number);
        }
        Ok(Self { path, numbers, left_out: Vec::new() })
    }

    /// From now on nothing is expected whose name ends so.
    pub fn leave_out(&mut self, ends: &[&'static str]) {
        self.left_out.extend(ends);
    }

    fn is_left_out(&self, what: &str) -> bool {
        self.left_out.iter().any(|end| what.ends_with(end))
    }

    /// What rose, from what to what; and what has no number.
    pub fn worse(&self, counted: &[Counted]) -> Vec<String> {
        let check = |it: &Counted| match self.numbers.get(&it.what) {
            Some(is) if it.each <= is.each + is.within => None,
            Some(is) => Some(format!(
                "{} rose from {:.2} to {:.2} ({:.2} more are tolerated)",
                it.what, is.each, it.each, is.within
            )),
            None => Some(format!("{} is {:.2} and has no number", it.what, it.each)),
        };
        counted.iter().filter_map(check).collect()
    }

    /// What fell by more than is tolerated.
    pub fn better(&self, counted: &[Counted]) -> Vec<String> {
        let check = |it: &Counted| {
            let is = self.numbers.get(&it.what)?;
            let fell = it.each < is.each - is.within;
            fell.then(|| format!("{} fell from {:.2} to {:.2}", it.what, is.each, it.each))
        };
        counted.iter().filter_map(check).collect()
    }

    /// Numbers of what is not counted any more.
    pub fn forgotten(&self, counted: &[Counted]) -> Vec<String> {
        let is_counted = |what: &str| counted.iter().any(|it| it.what == what);
        let left = self.numbers.keys().filter(|what| !is_counted(what) && !self.is_left_out(what));
        left.map(|what| format!("{what} is not counted")).collect()
    }

    /// Writes what was counted in place of what was expected. `is_all`: of others there are no numbers any more.
    pub fn update(&mut self, counted: &[Counted], is_all: bool) -> Result<()> {
        if is_all {
            let mut numbers = std::mem::take(&mut self.numbers);
            numbers.retain(|what, _| self.is_left_out(what));
            self.numbers = numbers;
        }
        let new = counted.iter().map(|it| (it.what.clone(), Number::of(it)));
        self.numbers.extend(new);
        std::fs::write(&self.path, text(&self.numbers))
            .with_context(|| self.path.display().to_string())
    }
}

/// One line for each number.
fn text(numbers: &BTreeMap<String, Number>) -> String {
    let mut text = String::from("{");
    for (n, (what, number)) in numbers.iter().enumerate() {
        let (comma, what) = (if n == 0 { "" } else { "," }, serde_json::Value::from(&**what));
        let Number { each, within } = number;
        let line = format!("{comma}\n  {what}: {{ \"each\": {each:.2}, \"within\": {within:.2} }}");
        text.write_str(&line).expect("strings take all");
    }
    text.push_str("\n}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(each: f64) -> [Counted; 1] {
        [Counted { what: "redis GET, calls".into(), each, unit: Unit::Request, is_kib: false }]
    }

    #[test]
    fn more_than_is_tolerated_is_worse_and_less_is_better() {
        let root = std::env::temp_dir().join(format!("towpath-counts-{}", std::process::id()));
        std::fs::create_dir_all(root.join("xtask")).unwrap();
        std::fs::write(root.join("xtask/counts.json"), "{}").unwrap();
        let mut expected = Expected::read(&root).unwrap();
        assert_eq!(expected.worse(&counted(7.)), ["redis GET, calls is 7.00 and has no number"]);
        expected.update(&counted(7.), true).unwrap();
        let mut expected = Expected::read(&root).unwrap();
        for each in [6.7, 7., 7.3] {
            assert!(expected.worse(&counted(each)).is_empty());
            assert!(expected.better(&counted(each)).is_empty());
        }
        let worse = expected.worse(&counted(8.));
        assert_eq!(worse, ["redis GET, calls rose from 7.00 to 8.00 (0.42 more are tolerated)"]);
        assert_eq!(expected.better(&counted(6.)), ["redis GET, calls fell from 7.00 to 6.00"]);
        assert_eq!(expected.forgotten(&[]).len(), 1);
        // Of a part, the rest stays, and so does what cannot be counted.
        expected.update(&[], false).unwrap();
        assert_eq!(Expected::read(&root).unwrap().numbers, expected.numbers);
        expected.leave_out(&["calls"]);
        assert_eq!(expected.forgotten(&[]), [""; 0]);
        expected.update(&[], true).unwrap();
        assert_eq!(expected.numbers.len(), 1);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
