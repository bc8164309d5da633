//! Sample data for tests of `towpath top`: two connections and a listener.

use std::time::Duration;

use towpath_model::{Proto, SampledSocket, SocketsSample};

use super::app::App;
use super::figures::{DropRate, InterfaceRates, ShardRates};
use crate::ss::samples::{figures, socket};

fn connection(remote: &str, rtt_us: u32, period_bytes_acked: u64) -> SampledSocket {
    let mut socket = socket(Proto::Tcp, "ESTAB", "10.0.2.15:80", Some(remote));
    (socket.tcp, socket.rtt_us, socket.cwnd) = (Some(figures()), rtt_us, 10);
    SampledSocket { period_bytes_acked, period_bytes_received: 125, socket }
}

/// Returns the state of the command with figures of a run.
pub fn app() -> App {
    let mut app = App::new("web (run 42): nginx".to_owned(), Duration::from_secs(1));
    let listener = SampledSocket {
        period_bytes_acked: 0,
        period_bytes_received: 0,
        socket: socket(Proto::Tcp, "LISTEN", "0.0.0.0:80", None),
    };
    let list = vec![
        connection("10.0.2.2:40000", 250, 125_000),
        connection("[2001:db8:1:2:3:4:5:6]:40001", 90_000, 2000),
        listener,
    ];
    app.figures.sockets = SocketsSample { total: 1234, period_us: 1_000_000, list };
    app.figures.interfaces = vec![InterfaceRates {
        name: "eth0".to_owned(),
        bits_in: 2e6,
        bits_out: 9.5e8,
        packets_in: 1000.,
        packets_out: 80_000.,
        drops: 2.,
    }];
    let drop = |reason: &str, rate, total| DropRate { reason: reason.to_owned(), rate, total };
    app.figures.drops = vec![drop("no_route", 2., 17), drop("tcp_closed", 0., 3)];
    app.figures.shards = vec![ShardRates {
        number: 0,
        turns: 4000.,
        sleeps: 300.,
        packets_in: 1000.,
        packets_out: 80_000.,
        drops: 2.,
    }];
    app
}
