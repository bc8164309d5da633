//! A thread for each connection.

use std::io::{self, Read, Write};
use std::thread;

use crate::Place;

/// Bytes of the stack of a thread: a thousand connections have a thousand threads.
const STACK: usize = 128 * 1024;

pub fn serve(place: Place) -> io::Result<()> {
    match place {
        Place::Kernel(at) => serve_all(std::net::TcpListener::bind(at)?.incoming(), |stream| {
            stream.set_nodelay(true)
        }),
        Place::Towpath(builder, at) => {
            let stack = builder.start()?;
            serve_all(stack.listen(at)?.incoming(), |stream| stream.set_nodelay(true))
        }
    }
}

fn serve_all<S: Read + Write + Send + 'static>(
    incoming: impl Iterator<Item = io::Result<S>>,
    set_up: impl Fn(&S) -> io::Result<()>,
) -> io::Result<()> {
    for stream in incoming {
        let stream = stream?;
        set_up(&stream)?;
        thread::Builder::new().stack_size(STACK).spawn(move || echo(stream))?;
    }
    Ok(())
}

fn echo(mut stream: impl Read + Write) {
    let mut bytes = [0; 4096];
    while let Ok(len @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(&bytes[..len]).is_err() {
            return;
        }
    }
}
