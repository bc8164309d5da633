//! `towpath man`: the manual pages, made of what `--help` says.

use anyhow::{Result, bail};
use clap::CommandFactory;

use crate::args::Cli;
use crate::output;

/// Prints the page of towpath, or of one of its commands.
pub fn man(of: Option<&str>) -> Result<()> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command(of)?).render(&mut page)?;
    output::write(&page)
}

fn command(of: Option<&str>) -> Result<clap::Command> {
    let mut all = Cli::command();
    // Gives the commands the names and options that they have below towpath.
    all.build();
    let Some(name) = of else { return Ok(all) };
    // The page is called towpath-NAME then, or towpath-sim-NAME, as git and cargo call theirs.
    let mut command = &all;
    for part in name.split('-') {
        let Some(below) = command.find_subcommand(part) else {
            let names: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
            bail!("{part:?} is not a command of {}: {}", command.get_name(), names.join(", "));
        };
        command = below;
    }
    Ok(command.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page() {
        let page = |of: Option<&str>| {
            let mut text = Vec::new();
            clap_mangen::Man::new(command(of).unwrap()).render(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert!(page(None).contains(".TH towpath 1"));
        let run = page(Some("run"));
        assert!(run.contains(".TH towpath-run 1") && run.contains("no\\-host\\-loopback"), "{run}");
        assert!(page(Some("ss")).contains("processes"));
        let tc = page(Some("sim-tc"));
        assert!(tc.contains(".TH towpath-sim-tc 1") && tc.contains("tx\\-frames"), "{tc}");
        assert!(command(Some("sim-td")).unwrap_err().to_string().contains("ping, onoff, send, tc"));
        assert!(command(Some("sing")).unwrap_err().to_string().contains("run, ss"));
    }
}
