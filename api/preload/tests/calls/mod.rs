//! The library must not call itself. Its kernel calls must bypass libc, because the library
//! replaces libc's functions. The replacements return what programs should see (readlink shows a
//! socket), and may need a lock that the caller holds.
//!
//! std calls libc. So these tests search the machine code for call paths from our functions to an
//! exported function. Exported functions may call each other. Calls through pointers in data are
//! not detected.

#[expect(dead_code, reason = "for tests that load the library, too")]
#[path = "../library/mod.rs"]
mod library;

use std::collections::{HashMap, HashSet};
use std::process::Command;

/// Functions at which the search stops, because the program is about to abort. The library reports
/// a panic itself.
const ENDS: [&str; 2] = ["9panicking", "alloc_error"];

/// Exception to the rule: part of a function's name on the path, and the symbols that it may reach.
pub type Allowed = (&'static str, &'static [&'static str]);

pub type Functions = HashMap<String, HashSet<String>>;

/// Call graph of a library. Disassembly takes most of the tests' time, so it is done once.
pub struct Library {
    pub file: String,
    interposed: HashSet<String>,
    pub calls: Functions,
}

impl Library {
    /// Builds the library of a package without link-time optimization, which would inline std's
    /// functions into ours.
    pub fn of(package: &str) -> Self {
        let file = build(package);
        let interposed = interposed(&file);
        let calls = calls(&file, &interposed);
        Self { file, interposed, calls }
    }
}

/// Fails if a function of the library reaches one that it exports, unless `allowed` contains the
/// path.
pub fn does_not_call_itself(library: &Library, allowed: &[Allowed]) {
    let Library { interposed, calls, .. } = library;
    assert!(interposed.contains("readlink") && interposed.contains("close"));
    let is_c = |name: &str| interposed.contains(name) || name.contains("towpath_symbols");
    let mut ways: HashMap<&str, Option<&str>> = HashMap::new();
    let ours = |name: &&String| is_c(name) || name.contains("towpath");
    let mut open: Vec<&str> = calls.keys().filter(ours).map(String::as_str).collect();
    assert!(open.len() > 300, "the library has many functions, and names in its debug information");
    ways.extend(open.iter().map(|&name| (name, None)));
    let mut found = Vec::new();
    while let Some(name) = open.pop() {
        if ENDS.iter().any(|end| name.contains(end)) {
            continue;
        }
        for to in calls.get(name).into_iter().flatten() {
            if let Some(symbol) = to.strip_prefix('!') {
                if !is_c(name) && !is_allowed(allowed, &ways, name, symbol) {
                    found.push(format!("{symbol} <- {}", way(&ways, name).join(" <- ")));
                }
            } else if !ways.contains_key(to.as_str()) {
                ways.insert(to, Some(name));
                open.push(to);
            }
        }
    }
    assert!(found.is_empty(), "the library calls its own functions:\n{}", found.join("\n"));
}

/// Returns all functions that a function can reach.
pub fn reached<'a>(calls: &'a Functions, from: &'a str) -> HashSet<&'a str> {
    let mut reached = HashSet::from([from]);
    let mut open = vec![from];
    while let Some(name) = open.pop() {
        for to in calls.get(name).into_iter().flatten() {
            let to = to.strip_prefix('!').unwrap_or(to);
            if reached.insert(to) {
                open.push(to);
            }
        }
    }
    reached
}

/// Returns the call path that reaches a function, from the function back to one of ours.
fn way<'a>(ways: &HashMap<&'a str, Option<&'a str>>, name: &'a str) -> Vec<&'a str> {
    std::iter::successors(Some(name), |name| ways.get(name).copied().flatten()).collect()
}

fn is_allowed<'a>(
    allowed: &[Allowed],
    ways: &HashMap<&'a str, Option<&'a str>>,
    name: &'a str,
    symbol: &str,
) -> bool {
    allowed.iter().any(|(part, symbols)| {
        symbols.contains(&symbol) && way(ways, name).iter().any(|name| name.contains(part))
    })
}

fn build(package: &str) -> String {
    let library = library::built(package, &library::profile().with_file_name("debug"));
    library.into_os_string().into_string().expect("a plain path")
}

pub fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("binutils are installed");
    assert!(output.status.success(), "{program} {arguments:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn interposed(library: &str) -> HashSet<String> {
    let text = output("nm", &["-D", "--defined-only", library]);
    text.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect()
}

/// Fails if the dynamic linker may bind the library's use of an exported function to another file.
/// A program's function of that name may call the library's, and both would call each other without
/// end.
pub fn binds_own_functions(library: &Library) {
    let relocations = output("readelf", &["-rW", &library.file]);
    let symbol = |line: &str| Some(line.split_whitespace().nth(4)?.split('@').next()?.to_owned());
    let found: Vec<String> = relocations.lines().filter_map(symbol).collect();
    assert!(found.iter().any(|symbol| symbol == "dlsym"), "the library uses libc");
    let own: Vec<_> = found.iter().filter(|symbol| library.interposed.contains(*symbol)).collect();
    assert!(own.is_empty(), "bound by the dynamic linker: {own:?}");
}

/// Returns the functions that each function calls or takes the address of. Exported names begin
/// with `!`.
fn calls(library: &str, interposed: &HashSet<String>) -> Functions {
    let table = pointers(library, interposed);
    let mut calls = Functions::new();
    let mut current = String::new();
    for line in output("objdump", &["-d", "--no-show-raw-insn", library]).lines() {
        let Some((before, label)) = line.rsplit_once('<') else { continue };
        if let Some(name) = label.strip_suffix(">:") {
            current = name.to_owned();
            calls.entry(current.clone()).or_default();
            continue;
        }
        let name = label.trim_end_matches('>').split('+').next().unwrap_or_default();
        let data = before.rsplit_once("# ").and_then(|(_, at)| parse(at.trim()));
        let to = match (data.and_then(|at| table.get(&at)), name.strip_suffix("@plt")) {
            (Some(to), _) => to.clone(),
            (None, Some(symbol)) if interposed.contains(symbol) => format!("!{symbol}"),
            _ => marked(name, interposed),
        };
        if to.trim_start_matches('!') != current {
            calls.entry(current.clone()).or_default().insert(to);
        }
    }
    calls
}

/// Returns the name, with a `!` in front if the library exports it.
fn marked(name: &str, interposed: &HashSet<String>) -> String {
    let mark = if interposed.contains(name) { "!" } else { "" };
    format!("{mark}{name}")
}

/// Returns the targets of pointers in the loaded library's tables, named as in `calls`.
fn pointers(library: &str, interposed: &HashSet<String>) -> HashMap<u64, String> {
    let symbols: HashMap<u64, String> = output("nm", &[library])
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (at, kind, name) = (words.next()?, words.next()?, words.next()?);
            "tTwW".contains(kind).then_some((parse(at)?, name.to_owned()))
        })
        .collect();
    output("readelf", &["-rW", library])
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = parse(words.first()?)?;
            let to = match words[..] {
                // A function of this library, which no other file can replace.
                [_, _, kind, to] if kind.ends_with("_RELATIVE") => {
                    marked(symbols.get(&parse(to)?)?, interposed)
                }
                [_, _, _, _, symbol, ..] => {
                    let symbol = symbol.split('@').next()?;
                    interposed.contains(symbol).then(|| format!("!{symbol}"))?
                }
                _ => return None,
            };
            Some((at, to))
        })
        .collect()
}

fn parse(hexadecimal: &str) -> Option<u64> {
    u64::from_str_radix(hexadecimal, 16).ok()
}
