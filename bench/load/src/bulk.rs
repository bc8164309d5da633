//! As many bytes as go: to the server, from it, or both at once; a thread for each flow.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::str::FromStr;
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// Bytes of a read or write: as many as iperf3's.
const CHUNK: usize = 128 * 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    In,
    Out,
    Both,
}

impl FromStr for Way {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> Result<Self> {
        Ok(match word {
            "in" => Self::In,
            "out" => Self::Out,
            "both" => Self::Both,
            _ => bail!("{word}: in, out or both"),
        })
    }
}

/// `flows` connections in each direction that is asked for.
pub fn run(to: SocketAddr, way: Way, flows: usize, time: Duration) -> Result<Value> {
    let port = |offset: u16| SocketAddr::new(to.ip(), to.port() + offset);
    let connect = |offset: u16, count: usize| {
        let streams = (0..count).map(|_| TcpStream::connect(port(offset)));
        streams.collect::<Result<Vec<_>, _>>().context("connect")
    };
    let into = connect(1, if way == Way::Out { 0 } else { flows })?;
    let from = connect(2, if way == Way::In { 0 } else { flows })?;
    let start = Instant::now();
    let end = start + time;
    let into: Vec<_> = into.into_iter().map(|it| spawn(move || send(it, start, end))).collect();
    let from: Vec<_> = from.into_iter().map(|it| spawn(move || receive(it, start, end))).collect();
    let (into, from) = (sum(into)?, sum(from)?);
    Ok(json!({ "in": into, "out": from, "both": into + from }))
}

/// Bits per second of one flow. What is counted has arrived: the server closes when it has all.
fn send(mut stream: TcpStream, start: Instant, end: Instant) -> Result<f64> {
    let bytes = vec![0; CHUNK];
    let mut count = 0_usize;
    while Instant::now() < end {
        count += stream.write(&bytes)?;
    }
    stream.shutdown(Shutdown::Write)?;
    ensure!(stream.read(&mut [0])? == 0, "the server sent something to who sends");
    Ok(bits(count, start))
}

fn receive(mut stream: TcpStream, start: Instant, end: Instant) -> Result<f64> {
    let mut bytes = vec![0; CHUNK];
    let mut count = 0_usize;
    while Instant::now() < end {
        let len = stream.read(&mut bytes)?;
        ensure!(len > 0, "the server closed a connection");
        count += len;
    }
    Ok(bits(count, start))
}

fn bits(bytes: usize, start: Instant) -> f64 {
    bytes as f64 * 8. / start.elapsed().as_secs_f64()
}

fn sum(flows: Vec<JoinHandle<Result<f64>>>) -> Result<f64> {
    flows.into_iter().try_fold(0., |sum, flow| Ok(sum + flow.join().expect("a thread of ours")?))
}
