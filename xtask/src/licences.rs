//! Checks that all dependencies have permissive licences.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, bail};

use crate::workspace;

/// Accepted licences. For `A OR B`, one must be accepted; for `A AND B`, both.
const ACCEPTED: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "0BSD",
    "ISC",
    "NCSA",
    "Zlib",
    "Unicode-3.0",
    "Unlicense",
];

/// Checks the licences of all dependencies, including those of tests, build scripts and other
/// workspaces of the repository.
pub fn run(root: &Path) -> Result<()> {
    let beside = workspace::beside(root)?;
    let (mut seen, mut refused) = (BTreeSet::new(), Vec::new());
    for folder in std::iter::once(root.to_owned()).chain(beside) {
        let metadata = workspace::metadata(&folder)?;
        for package in metadata["packages"].as_array().map_or(&[][..], Vec::as_slice) {
            let name = format!("{} {}", package["name"], package["version"]);
            let licence = package["license"].as_str().unwrap_or("none stated");
            if seen.insert(name.clone()) && !accepted(licence) {
                refused.push(format!("{name}: {licence}"));
            }
        }
    }
    if !refused.is_empty() {
        bail!("not permissively licensed:\n  {}", refused.join("\n  "));
    }
    println!("licences: {} crates, all permissive", seen.len());
    Ok(())
}

/// Returns whether the accepted licences satisfy an SPDX expression. Old manifests contain `A/B`
/// for `A OR B`.
fn accepted(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], "");
    expression
        .split(" AND ")
        .all(|part| part.split(" OR ").any(|licence| ACCEPTED.contains(&licence.trim())))
}

#[cfg(test)]
mod tests {
    use super::accepted;

    #[test]
    fn expressions() {
        assert!(accepted("MIT OR Apache-2.0"));
        assert!(accepted("MIT/GPL-3.0"));
        assert!(accepted("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(!accepted("GPL-3.0"));
        assert!(!accepted("MIT AND GPL-2.0"));
        assert!(!accepted("none stated"));
    }
}
