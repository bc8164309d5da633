//! Echo servers in three styles, on the kernel's TCP/IP stack or on one in this process:
//!
//! ```text
//! echoes std kernel 127.0.0.1:7007           threads and blocking sockets
//! echoes tokio rootless 127.0.0.1:7007 7     tasks; published port of a stack
//! echoes handlers tap tw0 7                  event handlers; port 7 of 10.77.0.2 on a TAP device
//! ```

mod handlers;
mod std_style;
mod tokio_style;

use std::error::Error;

use towpath::{Stack, handler::Handler};

/// Where a server runs.
pub enum Place {
    /// The kernel's stack, at an address.
    Kernel(String),
    /// A stack of this process, at an address of the stack.
    Towpath(Box<towpath::Builder>, String),
}

impl Place {
    fn parse(words: &[&str]) -> Option<Self> {
        let (builder, port) = match words {
            ["kernel", at] => return Some(Self::Kernel((*at).to_owned())),
            ["rootless", at, port] => {
                (Stack::builder().rootless().publish(format!("{at}:{port}")), port)
            }
            ["tap", name, port] => (Stack::builder().tap(*name).address("10.77.0.2/24"), port),
            _ => return None,
        };
        Some(Self::Towpath(Box::new(builder), format!("0.0.0.0:{port}")))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [style, place @ ..] = &words[..] else { return Err(USAGE.into()) };
    let place = Place::parse(place).ok_or(USAGE)?;
    match *style {
        "std" => Ok(std_style::serve(place)?),
        "tokio" => Ok(tokio_style::serve(place)?),
        "handlers" => run_handler(place, |_shard| handlers::Echo),
        _ => Err(USAGE.into()),
    }
}

fn run_handler<H: Handler>(
    place: Place,
    make: impl Fn(usize) -> H + Send + Sync + 'static,
) -> Result<(), Box<dyn Error>> {
    let Place::Towpath(builder, at) = place else {
        return Err("the kernel has no handlers".into());
    };
    let _stack = builder.serve(at, make).start()?;
    loop {
        std::thread::park();
    }
}

const USAGE: &str = "usage: echoes std|tokio|handlers followed by kernel ADDRESS:PORT, \
                     rootless ADDRESS:PORT PORT, or tap NAME PORT";
