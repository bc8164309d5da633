//! Implements `towpath man`, which generates manual pages from the help texts.

use anyhow::{Result, bail};
use clap::CommandFactory;

use crate::args::Cli;
use crate::output;

/// Prints the manual page of towpath, or of one of its commands.
pub fn man(of: &[String]) -> Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command(of)?).render(&mut page)?;
    output::write(&page)
}

fn command(of: &[String]) -> Result<clap::Command> {
    let mut all = Cli::command();
    // Let clap compute the full names and the inherited options of all commands.
    all.build();
    let mut found = &all;
    // Accept a name in both forms: `sim tc` and `sim-tc`.
    for name in of.iter().flat_map(|word| word.split('-')) {
        let Some(command) = found.find_subcommand(name) else {
            let names: Vec<_> = found.get_subcommands().map(clap::Command::get_name).collect();
            let above = found.get_name();
            bail!("{name:?} is not a command of {above}: {}", names.join(", "));
        };
        found = command;
    }
    // Pages are named towpath-NAME, as git and cargo name theirs.
    Ok(found.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page() {
        let words = |of: &[&str]| of.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let page = |of: &[&str]| {
            let mut text = Vec::new();
            clap_mangen::Man::new(command(&words(of)).unwrap()).render(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert!(page(&[]).contains(".TH towpath 1"));
        let run = page(&["run"]);
        assert!(run.contains(".TH towpath-run 1") && run.contains("no\\-host\\-loopback"), "{run}");
        assert!(page(&["ss"]).contains("processes"));
        assert!(page(&["proxy", "run"]).contains(".TH towpath-proxy-run 1"));
        for name in [&["sim-tc"][..], &["sim", "tc"]] {
            let tc = page(name);
            assert!(tc.contains(".TH towpath-sim-tc 1") && tc.contains("tx\\-frames"), "{tc}");
        }
        let error = command(&words(&["sim-td"])).unwrap_err();
        assert!(error.to_string().contains("ping, onoff, send, tc"), "{error}");
        let error = command(&words(&["sing"])).unwrap_err();
        assert!(error.to_string().contains("run, ss"));
    }
}
