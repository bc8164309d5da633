//! Compares the results of the scenarios in docs/sim with golden files.
//!
//! `TOWPATH_GOLDEN=write` updates the files of tests/golden and the pictures of docs/sim. Review
//! the differences before you commit: they show the effect of a change to TCP, a queue or the
//! simulator.

use std::path::{Path, PathBuf};

use towpath_sim::{BatchOptions, Report, json, read, run_all, svg, table};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sim")
}

fn report(name: &str) -> Report {
    let path = folder().join(format!("{name}.toml"));
    let text = std::fs::read_to_string(&path).expect("the scenario");
    let plans = read(&text).unwrap_or_else(|error| panic!("{name}.toml: {error}"));
    let options = BatchOptions { seed: None, runs: 1, captures: None, traces: false, threads: 1 };
    let mut report = run_all(&plans, options, &|_| {}).expect("no limit is reached");
    // Hide the version, so that a release does not change the result.
    report.version = "any";
    report
}

/// 64-bit FNV-1a.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn check(name: &str) {
    let report = report(name);
    let found = format!("{}JSON: {:016x}\n", table(&report), digest(&json(&report)));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    let (picture, drawn) = (folder().join(format!("{name}.svg")), svg(&report));
    if std::env::var_os("TOWPATH_GOLDEN").is_some_and(|what| what == "write") {
        std::fs::write(&path, &found).expect("the golden file");
        std::fs::write(&picture, &drawn).expect("the picture of the page");
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{name} gave\n{wanted}\nand gives now\n{found}");
    let wanted = std::fs::read_to_string(&picture).unwrap_or_default();
    assert!(drawn == wanted, "{name}.svg of docs/sim is not what the scenario gives now");
}

macro_rules! scenarios {
    ($($test:ident = $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                check($name);
            }
        )*

        const NAMES: &[&str] = &[$($name,)* nightly::NAME];
    };
}

scenarios! {
    asymmetric_gives_what_it_gave = "asymmetric",
    bufferbloat_gives_what_it_gave = "bufferbloat",
    burst_loss_gives_what_it_gave = "burst-loss",
    flash_crowd_gives_what_it_gave = "flash-crowd",
    idle_gives_what_it_gave = "idle",
    incast_gives_what_it_gave = "incast",
    policer_gives_what_it_gave = "policer",
    reno_cubic_gives_what_it_gave = "reno-cubic",
    reordering_gives_what_it_gave = "reordering",
    rtt_unfairness_gives_what_it_gave = "rtt-unfairness",
    satellite_gives_what_it_gave = "satellite",
    tail_loss_gives_what_it_gave = "tail-loss",
}

#[test]
fn every_scenario_has_a_page_and_a_test() {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder()).expect("docs/sim") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|end| end == "toml") {
            let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
            assert!(path.with_extension("md").exists(), "{name}.toml has no page {name}.md");
            found.push(name.to_owned());
        }
    }
    found.sort();
    let mut tested = NAMES.to_vec();
    tested.sort();
    assert_eq!(found, tested);
}

mod nightly {
    pub const NAME: &str = "parking-lot";

    /// Takes as long as all other scenarios together.
    #[test]
    fn parking_lot_gives_what_it_gave() {
        super::check(NAME);
    }
}
