//! Implements `towpath ss`, which lists sockets of running stacks in the format of ss(8).

mod args;
mod filter;
mod info;
#[cfg(test)]
pub mod samples;
mod services;
mod table;

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use rustix::process::geteuid;
use serde::Serialize;
use towpath_model::folder::other_users;
use towpath_model::{
    Answer, Call, Error, NoAnswer, Reply, ShownSocket, Told, ask_other_users, ask_user, printable,
    runs_of, user_name,
};

use crate::error::{ExitCode, Failure};
use crate::messages;

pub use args::SsArgs;
use filter::Filter;
use services::Services;
use table::{summary, table};

/// Runs the command `towpath ss`.
pub fn ss(args: &SsArgs) -> Result<()> {
    let wrong = |text: String| Failure::error(ExitCode::Usage, text);
    if let Some(why) = args.refusal() {
        return Err(wrong(why.to_owned()));
    }
    let (pid, filter) = args.pid_and_filter();
    let services = Services::of_host();
    let filter = Filter::new(args, filter, &services).map_err(|error| wrong(error.to_string()))?;
    let (mut answers, mut faults) = (Vec::new(), Vec::new());
    for (run, told) in ask(args.user, pid)? {
        match read(run.owner, run.pid, told) {
            Ok(answer) => answers.push(answer),
            Err(why) => faults.push(format!("{run} {why}")),
        }
    }
    if let (Some(pid), true) = (pid, answers.is_empty()) {
        if !faults.is_empty() {
            bail!("{}", faults.join("; "));
        }
        return Err(wrong(missing(args.user, pid)));
    }
    // Show errors of runs that do not answer, or send an invalid answer, and continue with the
    // remaining runs.
    faults.iter().for_each(|fault| messages::error(fault));
    if args.summary {
        return crate::output::write(summary(&answers).as_bytes());
    }
    for answer in &mut answers {
        answer.sockets.retain(|socket| filter.takes(socket));
    }
    let names = if args.numeric { Services::default() } else { services };
    match args.json {
        true => crate::output::write_json(&json(&answers)?),
        false => crate::output::write_text(&table(args, &answers, &names)),
    }
}

/// Queries the selected runs. If neither user nor process id is given, queries all runs of this
/// user, and as root also those of other users.
fn ask(user: Option<u32>, pid: Option<u32>) -> Result<Vec<Told>> {
    let own = geteuid().as_raw();
    let user_or_own = user.unwrap_or(own);
    if user_or_own != own && own != 0 {
        let text = Error::NotRoot(user_or_own).to_string();
        return Err(Failure::error(ExitCode::Usage, text));
    }
    let mut told =
        ask_user(user_or_own, |run| pid.is_none_or(|pid| pid == run.pid), &Call::Sockets);
    if user.is_none() && pid.is_none() {
        told.extend(ask_other_users(&Call::Sockets));
    }
    Ok(told)
}

/// Returns the message that there is no run with this process id. For root, the message names other
/// users that have such a run.
fn missing(user: Option<u32>, pid: u32) -> String {
    let whose = user.map_or("this user".to_owned(), |user| format!("user {}", user_name(user)));
    let has_it = |owner: &u32| runs_of(*owner).iter().any(|run| run.pid == pid);
    let others = other_users().into_iter().filter(|owner| Some(*owner) != user);
    let elsewhere =
        others.filter(has_it).map(|owner| format!("; with --user: {}", user_name(owner)));
    let elsewhere: String = elsewhere.take(1).collect();
    format!("no `towpath run` or `proxy` of {whose} has process id {pid}{elsewhere}")
}

/// Parses the answer of a run. An error is the predicate of a message about the run.
fn read(owner: u32, pid: u32, told: Result<Vec<u8>, NoAnswer>) -> Result<Answer, String> {
    let bytes = told.map_err(|why| why.to_string())?;
    let reply = serde_json::from_slice(&bytes).ok().filter(|reply: &Reply| reply.pid == pid);
    let reply = reply.ok_or("gave no readable answer; is it another version?")?;
    if let Some(fault) = reply.error {
        return Err(printable(&fault.message).chars().take(WHY_MAX).collect());
    }
    let sockets = reply.sockets.ok_or("gave no sockets; is it another version?")?;
    Ok(Answer { owner, pid, program: reply.program, sockets })
}

/// Maximum length in characters of an error message from a run that is shown.
const WHY_MAX: usize = 200;

fn json(answers: &[Answer]) -> Result<String> {
    #[derive(Serialize)]
    struct Row<'a> {
        user: &'a str,
        pid: u32,
        program: &'a str,
        #[serde(flatten)]
        socket: &'a ShownSocket,
    }
    let users: BTreeMap<u32, String> =
        answers.iter().map(|answer| (answer.owner, user_name(answer.owner))).collect();
    let rows = answers.iter().flat_map(|answer| {
        let program = answer.program.first().map_or("", String::as_str);
        let user = users.get(&answer.owner).map_or("", String::as_str);
        answer.sockets.iter().map(move |socket| Row { user, pid: answer.pid, program, socket })
    });
    let rows = rows.collect::<Vec<_>>();
    Ok(serde_json::to_string_pretty(&rows)? + "\n")
}

#[cfg(test)]
mod tests {
    use towpath_model::{FlowFigures, RequestFault, RunKind};

    use super::samples::{answer, figures};
    use super::*;

    fn reply(answer: &Answer) -> Reply {
        let mut reply = Reply::new(RunKind::Run, answer.program.clone());
        (reply.pid, reply.sockets) = (answer.pid, Some(answer.sockets.clone()));
        reply
    }

    fn read_bytes(bytes: Vec<u8>) -> Result<Answer, String> {
        read(answer().owner, 42, Ok(bytes))
    }

    #[test]
    fn nothing_reaches_the_terminal_but_text() {
        let read = |answer: &Answer| read_bytes(serde_json::to_vec(&reply(answer)).unwrap());
        assert_eq!(read(&answer()).unwrap(), answer());
        let changed = |name: &str, word: &str| {
            let mut value = serde_json::to_value(reply(&answer())).unwrap();
            value["sockets"][0][name] = word.into();
            read_bytes(serde_json::to_vec(&value).unwrap())
        };
        assert_eq!(changed("state", "ESTAB").unwrap().sockets[0].state.as_str(), "ESTAB");
        assert!(changed("state", "ESTAB\u{1b}[2J").is_err());
        assert!(changed("state", "\u{9b}2J").is_err());
        assert!(changed("congestion", "two words").is_err());
        assert!(changed("state", &"x".repeat(65)).is_err());
        assert!(read(&Answer { pid: 43, ..answer() }).is_err(), "another run's answer");
        let silent = |pid, why: &str| {
            let mut silence = Reply::new(RunKind::Run, Vec::new());
            (silence.pid, silence.error) = (pid, Some(RequestFault::new("silent", why)));
            read_bytes(serde_json::to_vec(&silence).unwrap()).unwrap_err()
        };
        assert_eq!(silent(42, "is \u{1b}[2Jstopped\n"), "is \u{fffd}[2Jstopped\u{fffd}");
        assert!(silent(43, "is stopped").contains("no readable answer"));
        assert_eq!(silent(42, &"x".repeat(5000)).len(), WHY_MAX);
    }

    #[test]
    fn a_flow_has_its_figures_and_a_socket_has_none() {
        let mut with_flow = answer();
        let figures = FlowFigures {
            bytes_to_server: 80,
            bytes_to_client: 4000,
            via: Some("192.0.2.1:4000".parse().unwrap()),
        };
        with_flow.sockets[1].flow = Some(figures);
        assert_eq!(read_bytes(serde_json::to_vec(&reply(&with_flow)).unwrap()).unwrap(), with_flow);
        let value: serde_json::Value = serde_json::from_str(&json(&[with_flow]).unwrap()).unwrap();
        assert_eq!(
            (&value[1]["bytes_to_server"], &value[1]["via"]),
            (&80.into(), &"192.0.2.1:4000".into())
        );
        assert_eq!(value[0].get("bytes_to_server"), None);
        assert_eq!(read_bytes(serde_json::to_vec(&reply(&answer())).unwrap()).unwrap(), answer());
    }

    #[test]
    fn json_is_an_array_of_flat_objects() {
        let mut with_figures = answer();
        with_figures.sockets[1].tcp = Some(figures());
        let text = json(&[with_figures]).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value[1]["bytes_acked"], &value[1]["mss"]), (&80.into(), &1448.into()));
        assert_eq!(value[0].get("mss"), None, "a listener has none");
        assert_eq!(value[1]["pid"], 42);
        assert_eq!(value[1]["state"], "ESTAB");
        assert_eq!(value[1]["remote"], "10.0.2.2:40000");
        assert_eq!(value[2]["remote"], serde_json::Value::Null);
        assert_eq!(json(&[]).unwrap(), "[]\n");
    }
}
