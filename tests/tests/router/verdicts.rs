//! Rules of `towpath router` compared with nftables as the oracle: equal packets and lists.

use towpath_tests::{PATIENCE, Process, eventually, towpath};

use super::control::Named;
use super::{Lab, end};

const VERDICTS: &str = include_str!("verdicts.py");

/// Outcome of a packet under a list.
#[derive(Debug)]
struct Verdict {
    about: String,
    is_hidden: bool,
    has_passed: bool,
}

impl Lab {
    fn verdicts(&self, whose: &[&str]) -> Vec<Verdict> {
        for host in ["10.2.0.2", "fd00:2::2"] {
            eventually("the other host answers", || self.pings(host));
        }
        let hosts = [&self.left, &self.right].map(|host| host.name().expect("root"));
        let line = [&["python3", "-c", VERDICTS][..], &hosts, whose].concat();
        let output = Process::spawn(&line).wait(PATIENCE).ok();
        let verdict = |line: &str| {
            let [about, hidden, passed] = line.split('|').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            Verdict { about: about.to_owned(), is_hidden: hidden == "1", has_passed: passed == "1" }
        };
        output.stdout.lines().map(verdict).collect()
    }
}

/// Deliberate differences are packets whose transport header is not visible to rules. The router
/// drops these under any list, as documented in `docs/acl.md`.
#[test]
fn rules_judge_as_nftables_does() {
    let Some(oracle) = Lab::new(1500) else { return };
    oracle.start_kernel();
    let wanted = oracle.verdicts(&["nft", oracle.router.name().expect("root")]);
    drop(oracle);
    let Some(it) = Named::new("verdicts", &[]) else { return };
    let found = it.lab.verdicts(&["acl", &towpath(), it.name()]);
    end(it.router);
    assert_eq!(found.len(), wanted.len());
    let count = |all: &[Verdict], of: fn(&Verdict) -> bool| all.iter().filter(|it| of(it)).count();
    let visible = count(&wanted, |it| !it.is_hidden);
    assert!(visible >= 200 && wanted.len() - visible >= 200, "{visible} of {}", wanted.len());
    let passed = count(&wanted, |it| it.has_passed && !it.is_hidden);
    assert!((visible / 4..visible * 3 / 4).contains(&passed), "{passed} of {visible}");
    let differ = |(found, wanted): (Verdict, Verdict)| {
        let right = wanted.has_passed && !wanted.is_hidden;
        assert_eq!(found.about, wanted.about);
        (found.has_passed != right).then(|| format!("{found:?}, nftables: {}", wanted.has_passed))
    };
    let wrong: Vec<_> = found.into_iter().zip(wanted).filter_map(differ).collect();
    assert!(wrong.is_empty(), "{}: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
}
