//! Lets [`axum::serve`](::axum::serve) accept connections of a stack.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use ::axum::serve::Listener;

use super::{TcpListener, TcpStream};

/// Time to wait after accepting has failed, as axum does for tokio's listener. Otherwise repeated
/// errors, for example after the stack has ended, would keep a thread busy.
const PAUSE: Duration = Duration::from_secs(1);

impl Listener for TcpListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    fn accept(&mut self) -> impl Future<Output = (TcpStream, SocketAddr)> + Send {
        accept(self)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            // Ignore the error: the peer has ended its connection before it was accepted.
            Err(error) if is_of_peer(&error) => {}
            Err(_) => ::tokio::time::sleep(PAUSE).await,
        }
    }
}

fn is_of_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset
    )
}
