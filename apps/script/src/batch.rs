//! Runs several scripts on several threads.

use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::verdict::{RunOptions, ScriptFailure, ScriptResult, run_text};

/// Returns the files among `paths`, and all files `*.pkt` in the directories among them, in order.
///
/// # Errors
/// Returns an error if a path cannot be read.
pub fn find_scripts(paths: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in paths {
        collect(path, true, &mut found).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
    }
    Ok(found)
}

fn collect(path: &Path, is_named: bool, found: &mut Vec<PathBuf>) -> io::Result<()> {
    if path.metadata()?.is_dir() {
        let mut entries: Vec<PathBuf> =
            path.read_dir()?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        entries.sort();
        return entries.iter().try_for_each(|entry| collect(entry, false, found));
    }
    if is_named || path.extension().is_some_and(|extension| extension == "pkt") {
        found.push(path.to_owned());
    }
    Ok(())
}

/// Runs several scripts, and returns their results in the order of `files`.
pub fn run_files(files: &[PathBuf], options: &RunOptions) -> Vec<ScriptResult> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(vec![None; files.len()]);
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(files.len()) {
            scope.spawn(|| {
                while let Some((at, file)) = next_file(&next, files) {
                    let result = run_file(file, options);
                    if let Ok(mut results) = results.lock() {
                        results[at] = Some(result);
                    }
                }
            });
        }
    });
    results.into_inner().unwrap_or_default().into_iter().flatten().collect()
}

fn next_file<'a>(next: &AtomicUsize, files: &'a [PathBuf]) -> Option<(usize, &'a PathBuf)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    files.get(at).map(|file| (at, file))
}

fn run_file(file: &Path, options: &RunOptions) -> ScriptResult {
    match std::fs::read_to_string(file) {
        Ok(text) => run_text(file, &text, options),
        Err(error) => {
            let message = format!("the script cannot be read: {error}");
            let failure = ScriptFailure { line: 0, column: None, message, history: Vec::new() };
            ScriptResult { path: file.to_owned(), failure: Some(failure), packets: Vec::new() }
        }
    }
}
