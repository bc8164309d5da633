//! Creates the uplink of an engine in PROGRAM's process from descriptors that `towpath run` opened.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};
use towpath_engine::EngineConfig;
use towpath_gateway::{Bound, Forward, Gateway, GatewayConfig, PublishWatch};
use towpath_pool::Port;
use towpath_shm::Fd;

use crate::counting::Tally;
use crate::device::driver::{ReceivedDevice, UnpackedDevice, counted};
use crate::device::unpacker;
use crate::launch::{LaunchSocket, LaunchSpec, Said};
use crate::replay::ReplayEnd;
use crate::shape::PackedLink;

/// Configuration and port of an engine in PROGRAM's process.
pub struct Uplink {
    /// Configuration of the engine.
    pub config: EngineConfig,
    /// Port of the engine's interface.
    pub port: Box<dyn Port + Send>,
    /// Counters of the port, which are final after the port was dropped.
    pub counters: Arc<Tally>,
    /// Reports when a replay has ended; `None` for links that are no replay.
    pub replay: Option<ReplayEnd>,
}

impl LaunchSpec {
    /// Creates the port of the link from `descriptors`, which `towpath run` has opened. The port
    /// may open up to `many` further descriptors. Notices for the user are sent over `socket`.
    ///
    /// # Errors
    /// Fails if descriptors are missing, or if no further descriptor or thread can be created.
    pub fn uplink(
        &self,
        descriptors: Vec<Fd>,
        many: u32,
        socket: &LaunchSocket,
    ) -> io::Result<Uplink> {
        let counters = Arc::default();
        let made = match &self.link {
            PackedLink::Gateway { config, forwards, passed } => {
                let config = GatewayConfig { descriptors: Some(many), ..(**config).clone() };
                gateway(&config, bound(forwards, *passed, descriptors)?, socket, &counters)?
            }
            PackedLink::Device { name, state } => {
                let unpack = unpacker(name).ok_or(ErrorKind::InvalidData)?;
                let reports = socket.clone();
                let on_gone = Box::new(move || reports.mention(&Said::DeviceGone));
                let (state, counters) = (state.clone(), &counters);
                unpack(ReceivedDevice { state, descriptors, counters, on_gone })?
            }
        };
        let UnpackedDevice { port, receivers, replay } = made;
        let port = self.joined(port, &counters)?;
        let mut config = self.shape.config(&*port);
        config.stack.receivers = receivers;
        Ok(Uplink { config, port, counters, replay })
    }

    /// Returns the port. If there are emulated links, wraps the port in them.
    fn joined(
        &self,
        port: Box<dyn Port + Send>,
        counters: &Arc<Tally>,
    ) -> io::Result<Box<dyn Port + Send>> {
        match &self.shape.netem {
            Some(netem) => Ok(counted(netem.shaped(port)?, counters)),
            None => Ok(port),
        }
    }
}

/// Returns the forwarded ports with their sockets. The process that started `towpath run` has bound
/// the last `passed` of them.
fn bound(
    forwards: &[(Forward, SocketAddr)],
    passed: usize,
    descriptors: Vec<Fd>,
) -> io::Result<Vec<Bound>> {
    if descriptors.len() < forwards.len() {
        return Err(ErrorKind::InvalidData.into());
    }
    let reserved = forwards.len().saturating_sub(passed);
    let bound = forwards.iter().zip(descriptors).enumerate().map(|(index, (forward, fd))| {
        let &(which, host) = forward;
        match index < reserved {
            true => Ok(Bound::reserved(which, fd, host)),
            false => Bound::passed(which, fd).map_err(|error| error.source),
        }
    });
    bound.collect()
}

/// Creates the gateway, which accepts clients on the bound host sockets.
fn gateway(
    config: &GatewayConfig,
    bound: Vec<Bound>,
    socket: &LaunchSocket,
    counters: &Arc<Tally>,
) -> io::Result<UnpackedDevice> {
    let tell = || {
        let reports = socket.clone();
        move |notice| reports.mention(&Said::Notice(notice))
    };
    let mut gateway = Gateway::new(config.clone(), now_ns())?;
    gateway.on_notice(tell());
    let watch = PublishWatch::new(config, &bound, tell());
    Gateway::serve_bound(slice::from_mut(&mut gateway), bound).map_err(|error| error.source)?;
    Ok(UnpackedDevice { receivers: Some(watch), ..UnpackedDevice::new(gateway, counters) })
}

/// Returns the time of CLOCK_MONOTONIC in ns. The engine uses the same clock.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
