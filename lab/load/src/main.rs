//! Server that echoes, discards and generates bytes, and its measuring clients, for
//! `cargo lab bench`.
//!
//! ```text
//! load serve PORT                               the server, which reports its start; see `serve`
//! load ask HOST:PORT CONNECTIONS BYTES SECONDS  each connection sends BYTES and awaits them
//! load churn HOST:PORT CLIENTS BYTES SECONDS    each client connects, asks once and closes
//! load users HOST:PORT USERS BYTES MS SECONDS   each user sends BYTES every MS ms, answered or not
//! load bulk HOST:PORT in|out|both FLOWS SECONDS bytes to the server, from it, or both at once
//! load echo HOST:PORT WINDOW BYTES SECONDS      datagrams and their return, WINDOW at a time
//! load reach HOST:PORT                          whether a connection is accepted within a second
//! load cast HOST:PORT BYTES SECONDS             datagrams one way; the server says how many it got
//! ```
//!
//! A client prints one JSON object. Times are in µs, rates per second.
//!
//! Reading order: `serve` is the server, `clients` creates plans of `towpath_load`, and `tally`
//! formats the clients' output.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout)] // Its output is what it is for.

mod clients;
mod serve;
mod tally;

use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;

fn main() -> Result<()> {
    allow_many_descriptors()?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = match &words[..] {
        ["serve", port] => return serve::run(port.parse()?),
        ["reach", to] => {
            TcpStream::connect_timeout(&to.parse()?, Duration::from_secs(1))?;
            json!("there")
        }
        ["ask", to, connections, bytes, time] => {
            clients::ask(to.parse()?, connections.parse()?, bytes.parse()?, seconds(time)?)?
        }
        ["churn", to, clients, bytes, time] => {
            clients::churn(to.parse()?, clients.parse()?, bytes.parse()?, seconds(time)?)?
        }
        ["users", to, users, bytes, ms, time] => {
            let every = Duration::from_millis(ms.parse()?);
            clients::users(to.parse()?, users.parse()?, bytes.parse()?, every, seconds(time)?)?
        }
        ["bulk", to, way, flows, time] => {
            clients::bulk(to.parse()?, way.parse()?, flows.parse()?, seconds(time)?)?
        }
        ["echo", to, window, bytes, time] => {
            clients::echo(to.parse()?, window.parse()?, bytes.parse()?, seconds(time)?)?
        }
        ["cast", to, bytes, time] => clients::cast(to.parse()?, bytes.parse()?, seconds(time)?)?,
        _ => bail!(
            "serve, reach, ask, churn, users, bulk, echo or cast; \
             see the top of lab/load/src/main.rs"
        ),
    };
    println!("{said}");
    Ok(())
}

fn seconds(word: &str) -> Result<Duration> {
    Ok(Duration::from_secs(word.parse()?))
}

/// Raises the limit on descriptors to the hard limit.
fn allow_many_descriptors() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?)
}
