//! Every crate we link must be usable under permissive terms.

use std::path::Path;

use anyhow::{Result, bail};

/// Licences we accept. A crate under `A OR B` needs one of them, under `A AND B` all of them.
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

/// Looks at the licence of every dependency, those of tests and builds included.
pub fn run(root: &Path) -> Result<()> {
    let metadata = crate::workspace::metadata(root)?;
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let mut refused = Vec::new();
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("none stated");
        if !accepted(licence) {
            refused.push(format!("{} {}: {licence}", package["name"], package["version"]));
        }
    }
    if !refused.is_empty() {
        bail!("not permissively licensed:\n  {}", refused.join("\n  "));
    }
    println!("licences: {} crates, all permissive", packages.len());
    Ok(())
}

/// Whether an SPDX expression can be satisfied. Old manifests write `A/B` for `A OR B`.
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
