//! Implements `towpath metrics`: metrics of running stacks in the text format of Prometheus.
//!
//! `gather` samples the runs, `families` defines the metrics, `encode` formats them, and `serve`
//! answers scrapers.

#[cfg(test)]
mod check;
mod encode;
mod families;
mod gather;
mod serve;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use towpath_model::{Client, Error, Runs};

use crate::error::{ExitCode, Failure};
use crate::ip::WhichRun;
use crate::{messages, output};

use serve::HttpAnswer;

/// Options of `towpath metrics`.
#[derive(Debug, Args)]
pub struct MetricsArgs {
    #[command(flatten)]
    pub which: WhichRun,
    /// Serve the metrics by HTTP at this address, until Ctrl-C; with a port alone, on 127.0.0.1
    #[arg(short, long, value_name = "[ADDRESS:]PORT", value_parser = parse_address)]
    pub listen: Option<SocketAddr>,
}

/// Text of `towpath metrics --help` before the options.
pub const ABOUT: &str = "\
Print the metrics of running stacks in the text format of Prometheus, once or for a scraper.

Without --name or --run, the metrics of all runs and routers of this user, each with its label \
run. With --listen, a request for /metrics samples the runs anew, at most once a second, so runs \
may come and go.";

/// Text of `towpath metrics --help` after the options.
pub const AFTER: &str = "\
Examples:
  towpath metrics | grep dropped
  towpath metrics --name web > /var/lib/node_exporter/towpath.prom
  towpath metrics --listen 9464
      At http://127.0.0.1:9464/metrics; other hosts have no access

Exit status:
  0  printed
  2  no such run, no answer, or the address cannot be used";

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    let wrong = || format!("{text:?} is not a port, or an address with a port such as [::1]:9464");
    port.or_else(|_| text.parse()).map_err(|_| wrong())
}

/// Runs `towpath metrics`.
///
/// # Errors
/// Returns an error message for the user.
pub fn metrics(args: &MetricsArgs) -> Result<()> {
    match args.listen {
        Some(address) => listen(args, address),
        None => once(&args.which),
    }
}

fn once(which: &WhichRun) -> Result<()> {
    let clients = clients(which).map_err(failure)?;
    if clients.is_empty() {
        // Fails with the message about a missing run.
        which.client_to_look().map_err(failure)?;
    }
    let (families, silent) = gather::gather(&clients);
    for error in &silent {
        messages::error(&format!("left out: {error}"));
    }
    if silent.len() == clients.len() {
        return Err(Failure::error(ExitCode::Usage, "no run has answered"));
    }
    output::write_text(&encode::text(families)?)
}

fn failure(error: Error) -> anyhow::Error {
    Failure::error(ExitCode::Usage, error.to_string())
}

/// Returns the selected run, or all runs of the user.
fn clients(which: &WhichRun) -> Result<Vec<Client>, Error> {
    match which.run.is_some() || which.name.is_some() {
        true => Ok(vec![which.client_to_look()?]),
        false => Ok(which.user.map_or_else(Runs::own, Runs::of_user).list()),
    }
}

fn listen(args: &MetricsArgs, address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).and_then(|it| Ok((it.local_addr()?, it)));
    let (own, listener) = listener
        .map_err(|error| Failure::error(ExitCode::Usage, format!("--listen {address}: {error}")))?;
    messages::error(&format!("serving http://{own}/metrics"));
    let which =
        WhichRun { run: args.which.run, name: args.which.name.clone(), user: args.which.user };
    let shared = SharedText::default();
    serve::serve(&listener, move || match shared.get(Instant::now(), || sampled(&which)) {
        Ok(text) => HttpAnswer::metrics(encode::CONTENT_TYPE, text),
        Err(error) => HttpAnswer::line("500 Internal Server Error", &format!("{error:#}")),
    })
}

/// Samples the runs for a scraper.
fn sampled(which: &WhichRun) -> Result<String> {
    let clients = match clients(which) {
        Ok(clients) => clients,
        // The run that was named does not exist at the moment.
        Err(Error::NoRun(_)) => Vec::new(),
        Err(error) => anyhow::bail!("{error}"),
    };
    encode::text(gather::gather(&clients).0)
}

/// Time for which requests share a sample.
const SHARED_FOR: Duration = Duration::from_secs(1);

/// The latest text, which concurrent and frequent requests share. Any user of the machine may
/// connect. Otherwise their requests would use up the subscriptions of each run, and much of the
/// time of its engine.
#[derive(Default)]
struct SharedText(Mutex<Option<(Instant, String)>>);

impl SharedText {
    /// Returns the latest text, or a new one if the latest text is too old for a request that
    /// arrived at `now`.
    fn get(&self, now: Instant, sample: impl FnOnce() -> Result<String>) -> Result<String> {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |at: Instant| now.saturating_duration_since(at) < SHARED_FOR;
        if let Some((_, text)) = latest.as_ref().filter(|(at, _)| is_recent(*at)) {
            return Ok(text.clone());
        }
        let text = sample()?;
        *latest = Some((Instant::now(), text.clone()));
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn frequent_requests_share_a_sample() {
        let (shared, samples, now) = (SharedText::default(), Cell::new(0), Instant::now());
        let get = |now| {
            let sample = || {
                samples.set(samples.get() + 1);
                Ok(samples.get().to_string())
            };
            shared.get(now, sample).unwrap()
        };
        assert_eq!(get(now), "1");
        assert_eq!(get(now), "1");
        assert_eq!(get(now + Duration::from_secs(3600)), "2");
        let failed = SharedText::default().get(now, || Err(anyhow::anyhow!("no run")));
        assert_eq!(failed.unwrap_err().to_string(), "no run");
    }

    #[test]
    fn a_port_alone_is_on_loopback() {
        let address = |text: &str| parse_address(text).map(|address| address.to_string());
        assert_eq!(address("9464").as_deref(), Ok("127.0.0.1:9464"));
        assert_eq!(address("[::1]:80").as_deref(), Ok("[::1]:80"));
        assert_eq!(address("0.0.0.0:80").as_deref(), Ok("0.0.0.0:80"));
        for wrong in ["localhost:80", "80x", "127.0.0.1", "65536"] {
            assert!(address(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
    }
}
