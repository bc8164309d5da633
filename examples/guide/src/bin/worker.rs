use std::sync::mpsc::{self, Sender};
use std::thread;

use towpath::Stack;
use towpath::handler::{Conn, ConnAction, ConnId, Handler, HandlerRemote, HandlerShard};

/// A number to factor, and the connection that waits for the result.
type Job = (ConnId, u64);

#[derive(Default)]
struct Factors {
    jobs: Option<Sender<Job>>,
}

impl Handler for Factors {
    type State = ();

    fn started(&mut self, _: &mut HandlerShard<'_>, remote: HandlerRemote<Self, ()>) {
        let (jobs, queue) = mpsc::channel::<Job>();
        self.jobs = Some(jobs);
        // The thread ends with the handler, which drops the sender.
        thread::spawn(move || {
            for (id, number) in queue {
                let answer = format!("{:?}\n", factors(number));
                let answered = remote.call(id, move |_, conn, _| {
                    conn.writer().write_all(answer.as_bytes());
                    ConnAction::Continue
                });
                if answered.is_err() {
                    return;
                }
            }
        });
    }

    fn readable(&mut self, conn: &mut Conn<'_>, _: &mut ()) -> ConnAction {
        let id = conn.id();
        let mut reader = conn.reader();
        let Some(line) = reader.until(b'\n') else {
            return if reader.len() > 20 { ConnAction::Reset } else { ConnAction::Continue };
        };
        let number = std::str::from_utf8(line).ok().and_then(|line| line.trim().parse().ok());
        let (Some(number), Some(jobs)) = (number, &self.jobs) else { return ConnAction::Reset };
        // The next line is read after the answer to this one.
        if jobs.send((id, number)).is_ok() { ConnAction::Pause } else { ConnAction::Reset }
    }
}

fn factors(mut number: u64) -> Vec<u64> {
    let mut found = Vec::new();
    let mut divisor = 2;
    while divisor <= number / divisor {
        while number.is_multiple_of(divisor) {
            found.push(divisor);
            number /= divisor;
        }
        divisor += 1;
    }
    found.extend((number > 1).then_some(number));
    found
}

fn main() -> Result<(), towpath::StartError> {
    let builder = Stack::builder().rootless().publish("127.0.0.1:7008:7");
    let _stack = builder.serve("0.0.0.0:7", |_shard| Factors::default()).start()?;
    loop {
        std::thread::park();
    }
}
