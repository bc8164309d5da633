//! A web service of axum, on a TCP/IP stack in this process.
//!
//! Two lines differ from the service on the kernel: the `use` of the listener, and the one that
//! starts the stack.
//!
//! ```console
//! $ cargo run -p towpath-example-web &
//! $ curl http://127.0.0.1:8080/hello/towpath
//! Hello, towpath!
//! ```

use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use towpath::tokio::TcpListener; // use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    towpath::Stack::builder().rootless().publish("127.0.0.1:8080:80").start()?.set_default();
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    axum::serve(listener, service()).await
}

/// The routes of the service.
pub fn service() -> Router {
    Router::new()
        .route("/hello/{name}", get(|Path(name): Path<String>| async move { hello(&name) }))
        .route("/length", post(|body: String| async move { body.len().to_string() }))
}

fn hello(name: &str) -> String {
    format!("Hello, {name}!\n")
}
