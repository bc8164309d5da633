//! Requests as fast as they are answered: on connections that stay, or on one each.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;
use mio::Token;
use serde_json::Value;

use crate::asking::{Askers, Asking};
use crate::tally::Tally;

/// Each of `count` connections sends `bytes`, waits until they are back, and begins again.
pub fn ask(to: SocketAddr, count: usize, bytes: usize, time: Duration) -> Result<Value> {
    let mut askers = Askers::new(to)?;
    let mut all = askers.connect_all(count)?;
    let mut tally = Tally::new()?;
    let start = Instant::now();
    let mut asked = vec![start; count];
    for asking in &mut all {
        askers.ask(asking, bytes)?;
    }
    while start.elapsed() < time {
        askers.wait(Some(time))?;
        let ready: Vec<usize> = askers.events.iter().map(|event| event.token().0).collect();
        for number in ready {
            let asking = &mut all[number];
            if askers.go_on(asking)? > 0 && !asking.is_waiting() {
                let now = Instant::now();
                tally.add(now - asked[number]);
                asked[number] = now;
                askers.ask(asking, bytes)?;
            }
        }
    }
    Ok(tally.json(start.elapsed()))
}

/// Each of `count` clients connects, sends `bytes`, waits until they are back, closes and begins again. A time is from
/// the beginning of a connection to the answer.
pub fn churn(to: SocketAddr, count: usize, bytes: usize, time: Duration) -> Result<Value> {
    let mut askers = Askers::new(to)?;
    let mut tally = Tally::new()?;
    let start = Instant::now();
    let mut all = (0..count).map(|n| Client::begin(&askers, n)).collect::<Result<Vec<_>>>()?;
    while start.elapsed() < time {
        askers.wait(Some(time))?;
        let ready: Vec<Token> = askers.events.iter().map(|event| event.token()).collect();
        for Token(number) in ready {
            if all[number].is_answered(&mut askers, bytes)? {
                tally.add(all[number].began.elapsed());
                all[number] = Client::begin(&askers, number)?;
            }
        }
    }
    Ok(tally.json(start.elapsed()))
}

struct Client {
    asking: Asking,
    began: Instant,
    has_asked: bool,
}

impl Client {
    fn begin(askers: &Askers, number: usize) -> Result<Self> {
        let began = Instant::now();
        Ok(Self { asking: askers.connect(number)?, began, has_asked: false })
    }

    fn is_answered(&mut self, askers: &mut Askers, bytes: usize) -> Result<bool> {
        if !self.has_asked {
            if self.asking.is_established()? {
                self.has_asked = true;
                askers.ask(&mut self.asking, bytes)?;
            }
            return Ok(false);
        }
        Ok(askers.go_on(&mut self.asking)? > 0 && !self.asking.is_waiting())
    }
}
