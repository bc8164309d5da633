//! A tokio echo server with several worker threads: `tokio_echo PORT`.
#![forbid(unsafe_code)]

use tokio::net::TcpListener;

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let port: u16 = std::env::args().nth(1).unwrap_or_default().parse()?;
    let listener = TcpListener::bind(("0.0.0.0", port)).await?;
    loop {
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(async move {
            let (mut read, mut write) = stream.split();
            tokio::io::copy(&mut read, &mut write).await
        });
    }
}
