//! Compares the counts of two builds on one machine, and names increases.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::report::Counted;
use crate::workspace::{cargo, target};

/// Minimum relative increase. Smaller ones occur when unrelated changes affect the layout of the
/// code.
const PART_MIN: f64 = 0.01;

/// Another commit of the project. Its checkout and build are kept for later comparisons.
pub struct Other {
    pub commit: String,
    pub checkout: PathBuf,
}

impl Other {
    /// Checks out the commit, and builds its `towpath`.
    pub fn build(root: &Path, commit: &str) -> Result<Self> {
        let name = git(root, &["rev-parse", "--verify", &format!("{commit}^{{commit}}")])
            .with_context(|| format!("{commit:?} is not a commit of this repository"))?;
        let checkout = target(root).join("beside").join(&name[..10.min(name.len())]);
        if !checkout.join("Cargo.toml").exists() {
            git(root, &["worktree", "prune"])?;
            let folder = checkout.to_str().context("the target folder's path is not UTF-8")?;
            git(root, &["worktree", "add", "--detach", "--force", folder, &name])?;
        }
        let mut build = cargo(&checkout, &["build", "--release"]);
        ensure!(build.status()?.success(), "the release build of {commit} failed");
        Ok(Self { commit: name, checkout })
    }

    pub fn towpath(&self) -> PathBuf {
        target(&self.checkout).join("release/towpath")
    }
}

/// Runs git, and returns the first line that it prints.
fn git(root: &Path, words: &[&str]) -> Result<String> {
    let output = Command::new("git").args(words).current_dir(root).output().context("git")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("git {}: {}", words.join(" "), said.trim());
    }
    Ok(String::from_utf8(output.stdout)?.lines().next().unwrap_or_default().to_owned())
}

/// Build to count.
#[derive(Clone, Copy)]
pub enum Build {
    Before,
    Now,
}

/// Counts of all runs of both builds, by name.
#[derive(Default)]
pub struct Comparison {
    samples: BTreeMap<String, [Vec<f64>; 2]>,
}

impl Comparison {
    pub fn add(&mut self, build: Build, counted: Vec<Counted>) {
        for Counted { what, each } in counted {
            self.samples.entry(what).or_default()[build as usize].push(each);
        }
    }

    /// Returns the counts that increased by more than the variation between the runs of either
    /// build.
    pub fn risen(&self) -> Vec<String> {
        self.changed(has_risen, "rose")
    }

    /// Returns the counts that decreased by more than the variation between runs.
    pub fn fallen(&self) -> Vec<String> {
        self.changed(|before, now| has_risen(now, before), "fell")
    }

    fn changed(&self, is: impl Fn(&[f64], &[f64]) -> bool, verb: &str) -> Vec<String> {
        let changed = self.samples.iter().filter(|(_, [before, now])| is(before, now));
        changed
            .map(|(what, [before, now])| {
                format!("{what} {verb} from {} to {}", Spread::of(before), Spread::of(now))
            })
            .collect()
    }

    pub fn json(&self) -> Value {
        let row = |(what, [before, now]): (&String, &[Vec<f64>; 2])| {
            let rose = has_risen(before, now);
            json!({ "what": what, "before": before, "now": now, "rose": rose })
        };
        self.samples.iter().map(row).collect()
    }
}

/// Returns whether all runs of `now` exceed all of `before`, and the medians differ by more than
/// both variations. Counts of only one build are not compared.
fn has_risen(before: &[f64], now: &[f64]) -> bool {
    if before.is_empty() || now.is_empty() {
        return false;
    }
    let (before, now) = (Spread::of(before), Spread::of(now));
    let rise = now.middle - before.middle;
    now.least > before.most
        && rise > before.width().max(now.width())
        && rise > PART_MIN * before.middle
}

/// Minimum, median and maximum of a count over the runs of one build.
struct Spread {
    least: f64,
    middle: f64,
    most: f64,
}

impl Spread {
    /// Computes the spread of samples, of which there must be at least one.
    fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (sorted[0], sorted[sorted.len() - 1]);
        Self { least, middle: sorted[sorted.len() / 2], most }
    }

    fn width(&self) -> f64 {
        self.most - self.least
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.middle, self.least, self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(before: &[f64], now: &[f64]) -> Comparison {
        let mut comparison = Comparison::default();
        for (build, samples) in [(Build::Before, before), (Build::Now, now)] {
            for &each in samples {
                comparison.add(build, vec![Counted { what: "redis GET, calls".into(), each }]);
            }
        }
        comparison
    }

    #[test]
    fn a_rise_is_named_beyond_the_spread_of_both_builds() {
        let risen = compared(&[5., 5.1, 5.2], &[6., 6.1, 6.1]).risen();
        assert_eq!(
            risen,
            ["redis GET, calls rose from 5.10 (5.00 to 5.20) to 6.10 (6.00 to 6.10)"]
        );
        for (before, now) in [
            // Overlapping runs; medians that differ by no more than the variation; an increase
            // below 1 %; a decrease.
            (&[5., 5.5, 6.][..], &[5.9, 6.1, 6.2][..]),
            (&[5., 5., 5.], &[5.1, 6., 7.]),
            (&[100., 100., 100.], &[100.5, 100.5, 100.5]),
            (&[6., 6., 6.], &[5., 5., 5.]),
        ] {
            assert_eq!(compared(before, now).risen(), [""; 0], "{before:?} {now:?}");
        }
        assert_eq!(compared(&[6.], &[5.]).fallen().len(), 1);
    }

    #[test]
    fn a_count_of_one_build_alone_is_not_compared() {
        assert_eq!(compared(&[], &[5.]).risen(), [""; 0]);
        assert_eq!(compared(&[5.], &[]).fallen(), [""; 0]);
    }

    #[test]
    fn a_word_that_is_no_commit_is_named() {
        let error = Other::build(&crate::workspace::root(), "no-such-commit").err().unwrap();
        assert!(error.to_string().contains("\"no-such-commit\" is not a commit"), "{error}");
    }
}
