//! Collects samples of runs. Each run is queried on a thread of its own, so that time limits of
//! stopped runs do not add up.

use std::time::{Duration, Instant};

use towpath_model::{Client, Error, ReportTopic, RunReport, Subscription};

use super::families::{Families, RunSample};

/// Maximum number of runs that are queried for one scrape.
pub const RUNS_MAX: usize = 64;
/// Maximum time to wait for the samples of a run.
const PATIENCE: Duration = Duration::from_secs(3);

/// Collects the metrics of all given runs. Proxies, which have no samples, are left out. Returns
/// the errors of the runs that did not answer as well.
pub fn gather(clients: &[Client]) -> (Families, Vec<Error>) {
    let (asked, left_out) = clients.split_at(clients.len().min(RUNS_MAX));
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads = asked.iter().map(|client| {
            let builder = std::thread::Builder::new().name("towpath-sample".into());
            builder.spawn_scoped(scope, move || sample(client)).map_err(|_| client.silent())
        });
        let threads: Vec<_> = threads.collect();
        // A thread that has panicked has no result.
        let joined = threads.into_iter().map(|thread| match thread {
            Ok(thread) => thread.join().ok(),
            Err(error) => Some(Err(error)),
        });
        joined.collect()
    });
    let (mut families, mut silent) = (Families::default(), Vec::new());
    for result in results.into_iter().flatten() {
        match result {
            Ok(sample) => families.add_run(&sample),
            Err(Error::Refused(fault)) if fault.code.as_str() == "unsupported" => {}
            Err(Error::Ended(_) | Error::NoRun(_)) => {}
            Err(error) => silent.push(error),
        }
    }
    families.add_silent_runs((silent.len() + left_out.len()) as u64);
    (families, silent)
}

/// Returns one sample of a run.
fn sample(client: &Client) -> Result<RunSample, Error> {
    let topics =
        [ReportTopic::Traffic, ReportTopic::Counters, ReportTopic::Shards, ReportTopic::Sockets];
    let subscription = Subscription {
        period_ms: Subscription::PERIOD_MS_MAX,
        sockets_max: 0,
        ..Subscription::to(&topics)
    };
    let mut reports = client.subscribe(&subscription)?;
    let mut sample = RunSample { reply: reports.reply().clone(), ..RunSample::default() };
    let until = Instant::now() + PATIENCE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let Some(report) = reports.next_within(left)? else {
            return Err(client.silent());
        };
        let RunReport { traffic, counters, shards, sockets, lost, .. } = report;
        // A part of the sample was larger than the memory of the run for unsent reports. Counters
        // that are missing must not look like those of a run that has none.
        if lost.is_some() {
            return Err(client.incomplete());
        }
        // Replace earlier parts: a run of another user may send the same part without end.
        replace(&mut sample.interfaces, traffic);
        replace(&mut sample.layers, counters);
        replace(&mut sample.shards, shards);
        // Sockets are the last part of each sample.
        if let Some(sockets) = sockets {
            sample.sockets = sockets.total;
            return Ok(sample);
        }
        if Instant::now() >= until {
            return Err(client.silent());
        }
    }
}

fn replace<T>(part: &mut Vec<T>, with: Option<Vec<T>>) {
    if let Some(with) = with {
        *part = with;
    }
}
