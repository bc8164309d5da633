//! Targets that cargo does not test, because a test binary or a run of rustdoc without tests still
//! has to be built.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

/// Returns faults for tests of a package that never run, because `test = false` or
/// `doctest = false` is set for their target. `sources` are all files of the workspace.
pub fn faults(root: &Path, package: &Value, sources: &[PathBuf]) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for target in package["targets"].as_array().context("targets")? {
        let kinds = target["kind"].as_array().context("kind")?;
        let is_lib = kinds.iter().any(|kind| kind == "lib");
        let is_skipped = |key: &str| target[key] == false;
        let has_tests = is_lib || kinds.iter().any(|kind| kind == "bin" || kind == "cdylib");
        let root_file = Path::new(target["src_path"].as_str().context("src_path")?);
        let root_file = root_file.strip_prefix(root).unwrap_or(root_file);
        for file in sources.iter().filter(|file| is_of(root_file, file)) {
            let Ok(text) = std::fs::read_to_string(root.join(file)) else { continue };
            let name = file.display();
            if has_tests && is_skipped("test") && text.lines().any(|it| it.trim() == "#[test]") {
                faults.push(format!("{name}: its tests never run, because of `test = false`"));
            }
            if is_lib && is_skipped("doctest") && has_example(&text) {
                faults.push(format!("{name}: its examples never run: `doctest = false`"));
            }
        }
    }
    Ok(faults)
}

/// Returns whether a file belongs to the target with this root file.
fn is_of(root_file: &Path, file: &Path) -> bool {
    let is_folder = root_file.ends_with("lib.rs") || root_file.ends_with("main.rs");
    let folder = root_file.parent().filter(|_| is_folder).unwrap_or(root_file);
    file.starts_with(folder) && file.extension().is_some_and(|end| end == "rs")
}

/// Returns whether documentation contains code that rustdoc compiles.
fn has_example(text: &str) -> bool {
    const COMPILED: [&str; 5] = ["", "rust", "no_run", "should_panic", "compile_fail"];
    let fences = text.lines().filter_map(|line| {
        let line = line.trim_start();
        let documentation = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
        documentation.trim_start().strip_prefix("```")
    });
    // Every second fence closes a block.
    fences.step_by(2).any(|info| COMPILED.contains(&info.split(',').next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_of_targets_that_cargo_skips_are_faults() {
        let root = std::env::temp_dir().join(format!("towpath-untested-{}", std::process::id()));
        std::fs::create_dir_all(root.join("a/src/bin")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(root.join(name), text).unwrap();
        write("a/src/lib.rs", "/// ```no_run\n/// f()\n/// ```\nfn f() {}\n");
        write("a/src/bin/b.rs", "fn main() {}\n#[test]\nfn runs() {}\n");
        let sources = ["a/src/lib.rs", "a/src/bin/b.rs"].map(PathBuf::from);
        let faults = |test: bool, doctest: bool| {
            let target = |kind: &str, name: &str| {
                let path = root.join(name);
                let doctest = doctest && kind == "lib";
                serde_json::json!({
                    "kind": [kind], "src_path": path, "test": test, "doctest": doctest
                })
            };
            let targets = [target("lib", "a/src/lib.rs"), target("bin", "a/src/bin/b.rs")];
            faults(&root, &serde_json::json!({ "targets": targets }), &sources).unwrap()
        };
        assert_eq!(faults(true, true), [""; 0]);
        let found = faults(true, false);
        assert!(found.len() == 1 && found[0].contains("doctest = false"), "{found:?}");
        let found = faults(false, true);
        // The file is part of the folder of the library, too.
        assert!(found.len() == 2 && found[0].contains("bin/b.rs"), "{found:?}");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn only_code_of_rust_is_an_example() {
        assert!(has_example("//! ```\n//! f();\n//! ```\n"));
        assert!(has_example("/// ```text\n/// f\n/// ```\n/// ```compile_fail,E0277\n/// ```\n"));
        assert!(!has_example("/// ```text\n/// f\n/// ```\n// ```\n"));
    }
}
