//! Measures the structure of the product's code: method calls between the files of a type, type
//! names defined several times, and tuple patterns in parameters.
//!
//! `xtask/structure.json` has a ceiling for each count. A count above its ceiling is a fault; `tidy
//! --lower` lowers ceilings to the counts below them, and no command raises one.
//!
//! [`crate::circles`] checks paths between files. Calls such as `self.method()` contain no path,
//! but make the files of a large type depend on each other. The counts here are sizes of rings of
//! such calls.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::circles::reach;
use source::Source;

const CEILINGS: &str = "xtask/structure.json";
/// Maximum size of a ring of files without a ceiling, as for circles of paths.
const RING_FREE: usize = 3;

/// Counts of the workspace, or their ceilings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    /// Number of files in the largest ring of method calls, by `FOLDER TYPE`. A type without an
    /// entry may have [`RING_FREE`].
    rings: BTreeMap<String, usize>,
    /// Number of names that several types of the product have.
    shared_type_names: usize,
    /// Number of function parameters that are tuple patterns, each in place of a struct.
    tuple_parameters: usize,
}

/// Counts, and the places that a fault lists.
#[derive(Debug, Default)]
struct Measured {
    counts: Counts,
    /// Files of the largest ring, by `FOLDER TYPE`.
    rings: BTreeMap<String, Vec<String>>,
    shared: Vec<String>,
    tuples: Vec<String>,
}

/// Compares the counts with their ceilings. With `lower`, first lowers the ceilings to the counts.
pub fn check(root: &Path, lower: bool) -> Result<Vec<String>> {
    let measured = measure(source::read(root)?);
    let file = root.join(CEILINGS);
    let text = std::fs::read_to_string(&file).context(CEILINGS)?;
    let mut ceilings: Counts = serde_json::from_str(&text).context(CEILINGS)?;
    let lowered = ceilings.lowered(&measured.counts);
    if lowered != ceilings && lower {
        let text = format!("{}\n", serde_json::to_string_pretty(&lowered)?);
        std::fs::write(&file, text).context(CEILINGS)?;
        println!("tidy: {CEILINGS} has lower ceilings now");
        ceilings = lowered;
    } else if lowered != ceilings {
        println!("tidy: {CEILINGS} can be lowered: `cargo xtask tidy --lower`");
    }
    let mut faults = Vec::new();
    measured.compare(&ceilings, &mut faults);
    Ok(faults)
}

impl Counts {
    /// Returns the ceilings, lowered to the counts that are below them.
    fn lowered(&self, counts: &Self) -> Self {
        let ring = |(name, ceiling): (&String, &usize)| {
            let count = counts.rings.get(name).copied().unwrap_or_default();
            let lowered = count.min(*ceiling);
            (lowered > RING_FREE).then(|| (name.clone(), lowered))
        };
        Self {
            rings: self.rings.iter().filter_map(ring).collect(),
            shared_type_names: self.shared_type_names.min(counts.shared_type_names),
            tuple_parameters: self.tuple_parameters.min(counts.tuple_parameters),
        }
    }
}

impl Measured {
    /// Adds a fault for each count above its ceiling.
    fn compare(&self, ceilings: &Counts, faults: &mut Vec<String>) {
        for (name, files) in &self.rings {
            let ceiling = ceilings.rings.get(name).copied().unwrap_or(RING_FREE);
            if files.len() > ceiling {
                faults.push(format!(
                    "{name}: {} files call each other's methods in a ring, at most {ceiling} are \
                     allowed ({CEILINGS}): {}",
                    files.len(),
                    files.join(", ")
                ));
            }
        }
        let mut list = |what: &str, places: &[String], ceiling: usize| {
            if places.len() > ceiling {
                faults.push(format!(
                    "{} {what}, at most {ceiling} are allowed ({CEILINGS}):\n    {}",
                    places.len(),
                    places.join("\n    ")
                ));
            }
        };
        list("type names are used twice or more", &self.shared, ceilings.shared_type_names);
        list("parameters are tuple patterns", &self.tuples, ceilings.tuple_parameters);
    }
}

fn measure(sources: Vec<Source>) -> Measured {
    let mut measured = Measured {
        shared: shared_names(&sources),
        tuples: sources.iter().flat_map(|source| source.tuples.iter().cloned()).collect(),
        rings: rings(&sources),
        ..Measured::default()
    };
    measured.counts = Counts {
        rings: measured.rings.iter().map(|(name, files)| (name.clone(), files.len())).collect(),
        shared_type_names: measured.shared.len(),
        tuple_parameters: measured.tuples.len(),
    };
    measured
}

/// Returns `NAME: FILES` for each name that several types have.
fn shared_names(sources: &[Source]) -> Vec<String> {
    let mut files: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for source in sources {
        for name in &source.types {
            files.entry(name).or_default().push(&source.file);
        }
    }
    let shared = files.into_iter().filter(|(_, files)| files.len() > 1);
    shared.map(|(name, files)| format!("{name}: {}", files.join(", "))).collect()
}

/// A type: the file that defines it, and its name.
type Owner<'a> = (&'a str, &'a str);

/// Returns the largest ring of files of each type whose files call each other's methods in a ring.
fn rings(sources: &[Source]) -> BTreeMap<String, Vec<String>> {
    let mut methods: BTreeMap<Owner, Vec<(usize, &source::Method)>> = BTreeMap::new();
    for (n, source) in sources.iter().enumerate() {
        for method in &source.methods {
            if let Some(owner) = owner(sources, source, &method.of) {
                methods.entry((owner, &method.of)).or_default().push((n, method));
            }
        }
    }
    let mut rings = BTreeMap::new();
    for ((file, name), methods) in methods {
        let folder = &sources.iter().find(|source| source.file == file).expect("defines it").folder;
        if let Some(ring) = largest_ring(sources, &methods) {
            rings.insert(format!("{folder} {name}"), ring);
        }
    }
    rings
}

/// Returns the file that defines the type of an `impl`. If several do, selects the same file, or
/// the one whose path has the longest common prefix.
fn owner<'a>(sources: &'a [Source], at: &Source, name: &str) -> Option<&'a str> {
    let defining = |source: &&Source| {
        source.folder == at.folder && source.types.iter().any(|defined| defined == name)
    };
    let common = |source: &&Source| {
        let stem = source.file.trim_end_matches(".rs").split('/');
        let equal = stem.zip(at.file.split('/')).take_while(|(a, b)| a == b).count();
        (source.file == at.file, equal, std::cmp::Reverse(source.file.len()))
    };
    sources.iter().filter(defining).max_by_key(common).map(|source| &*source.file)
}

fn largest_ring(sources: &[Source], methods: &[(usize, &source::Method)]) -> Option<Vec<String>> {
    let files: BTreeSet<usize> = methods.iter().map(|(file, _)| *file).collect();
    let files: Vec<usize> = files.into_iter().collect();
    let number = |file: usize| files.binary_search(&file).expect("collected");
    let mut edges = vec![BTreeSet::new(); files.len()];
    for (from, caller) in methods {
        for (to, _) in methods.iter().filter(|(_, callee)| caller.calls.contains(&callee.name)) {
            if from != to {
                edges[number(*from)].insert(number(*to));
            }
        }
    }
    let reached: Vec<BTreeSet<usize>> = (0..files.len()).map(|n| reach(&edges, n)).collect();
    let ring = |n: usize| -> Vec<usize> {
        reached[n].iter().copied().filter(|&other| reached[other].contains(&n)).collect()
    };
    let largest = (0..files.len()).map(ring).max_by_key(Vec::len)?;
    (largest.len() > 1)
        .then(|| largest.into_iter().map(|n| sources[files[n]].file.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Vec<Source> {
        let read = |(file, text): &(&str, &str)| {
            let code = syn::parse_file(text).unwrap();
            Source::of("a".into(), (*file).into(), &code)
        };
        files.iter().map(read).collect()
    }

    #[test]
    fn a_ring_of_method_calls_is_found() {
        let one = "pub struct S; impl S { fn f(&self) { self.g() } }";
        let two = "impl S { fn g(&self) { assert!(self.h()) } }";
        let three = "impl crate::S { fn h(&self) { if x { Self::f() } } }";
        let ring = |three| {
            rings(&sources(&[("a/src/s.rs", one), ("a/src/t.rs", two), ("a/src/u.rs", three)]))
        };
        let found = ring(three);
        assert_eq!(found["a S"], ["a/src/s.rs", "a/src/t.rs", "a/src/u.rs"]);
        assert_eq!(ring("impl S { fn h(&self) { other.f() } }"), BTreeMap::new());
        let test = "#[cfg(test)] mod tests { impl S { fn h(&self) { self.f() } } }";
        assert_eq!(ring(test), BTreeMap::new());
    }

    #[test]
    fn names_and_tuples_are_counted() {
        let one = "pub struct S; fn f((a, b): (u8, u8), c: u8) {}";
        let two = "enum S {} trait T { fn g(&self, (a, b): (u8, u8)) {} }";
        let measured = measure(sources(&[("a/src/s.rs", one), ("a/src/t.rs", two)]));
        assert_eq!(measured.shared, ["S: a/src/s.rs, a/src/t.rs"]);
        assert_eq!(measured.counts.tuple_parameters, 2);
        let mut faults = Vec::new();
        measured.compare(&measured.counts, &mut faults);
        assert!(faults.is_empty());
        measured.compare(&Counts::default(), &mut faults);
        assert_eq!(faults.len(), 2, "{faults:?}");
    }

    #[test]
    fn ceilings_only_fall() {
        let rings = |n| BTreeMap::from([("a S".to_owned(), n)]);
        let ceilings = Counts { rings: rings(9), shared_type_names: 5, tuple_parameters: 1 };
        let counts = Counts { rings: rings(6), shared_type_names: 7, tuple_parameters: 0 };
        let lowered = ceilings.lowered(&counts);
        assert_eq!(lowered, Counts { rings: rings(6), shared_type_names: 5, tuple_parameters: 0 });
        assert_eq!(lowered.lowered(&Counts { rings: rings(2), ..counts }).rings, BTreeMap::new());
    }
}
