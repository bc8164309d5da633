//! The uplink of an engine in PROGRAM's process, over descriptors that `towpath run` opened.

use std::io::{self, ErrorKind};
use std::slice;
use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};
use towpath_engine::EngineConfig;
use towpath_gateway::{Bound, Gateway, GatewayConfig, PublishWatch};
use towpath_packet::{PacketSocket, Parts as PacketParts};
use towpath_pool::Port;
use towpath_replay::Replay;
use towpath_shm::Fd;
use towpath_stack::ReceiverWatch;
use towpath_tap::{Parts, Tap};
use towpath_xdp::{Parts as XdpParts, XdpSocket};

use crate::coalescing::Coalescing;
use crate::counting::{Counting, Tally};
use crate::launch::{LaunchSocket, LaunchSpec, Said};
use crate::replay::{ReplayEnd, StartWatch};
use crate::shape::Link;

/// An engine to be.
pub struct Uplink {
    /// Its configuration.
    pub config: EngineConfig,
    /// Port of its interface.
    pub port: Box<dyn Port + Send>,
    /// Counters of the port, here once it is gone.
    pub counters: Arc<Tally>,
    /// End of the replay, if the link is one.
    pub replay: Option<ReplayEnd>,
}

impl LaunchSpec {
    /// Makes the port over `descriptors`, those of the link; the port may open `many` more. Later
    /// notices for the user are sent to `home`.
    ///
    /// # Errors
    /// Descriptors are missing, or the system gives no more of them, nor a thread.
    pub fn uplink(
        &self,
        descriptors: Vec<Fd>,
        many: u32,
        home: &LaunchSocket,
    ) -> io::Result<Uplink> {
        let counters = Arc::default();
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or(ErrorKind::InvalidData);
        let told = home.clone();
        let mut watch: Option<Arc<dyn ReceiverWatch>> = None;
        let mut end = None;
        let port = match &self.link {
            Link::Gateway { config, forwards, passed } => {
                let config = GatewayConfig { descriptors: Some(many), ..(**config).clone() };
                let mut gateway = Gateway::new(config.clone(), now_ns())?;
                gateway.on_notice(move |notice| told.mention(&Said::Notice(notice)));
                let reserved = forwards.len().saturating_sub(*passed);
                let mut bound = Vec::new();
                for (index, &(which, host)) in forwards.iter().enumerate() {
                    bound.push(if index < reserved {
                        Bound::reserved(which, next()?, host)
                    } else {
                        Bound::passed(which, next()?).map_err(|error| error.source)?
                    });
                }
                let told = home.clone();
                let tell = move |notice| told.mention(&Said::Notice(notice));
                watch = Some(PublishWatch::new(&config, &bound, tell));
                Gateway::serve_bound(slice::from_mut(&mut gateway), bound)
                    .map_err(|error| error.source)?;
                self.joined(Counting::new(gateway, &counters), &counters)?
            }
            Link::Tap { name, udp_segmentation } => {
                let (name, udp_segmentation) = (name.clone(), *udp_segmentation);
                let mut tap = Tap::from_parts(Parts { fd: next()?, name, udp_segmentation });
                tap.on_gone(move || told.mention(&Said::DeviceGone));
                self.joined(Counting::new(tap, &counters), &counters)?
            }
            Link::Replay(file) => {
                let mut replay = Replay::from_fd(next()?).map_err(io::Error::other)?;
                end = Some(ReplayEnd::of(&mut replay, file));
                watch = Some(Arc::new(StartWatch(replay.wait_for_start())));
                self.joined(Counting::new(replay, &counters), &counters)?
            }
            Link::Packet(interface) => {
                let descriptors = std::iter::once(next()?).chain(descriptors).collect();
                let parts = PacketParts { descriptors, interface: interface.clone() };
                let mut socket = PacketSocket::from_parts(parts);
                socket.on_gone(move || told.mention(&Said::DeviceGone));
                self.joined(Counting::new(socket, &counters), &counters)?
            }
            Link::Xdp(facts) => {
                let parts = XdpParts { descriptors: descriptors.collect(), facts: facts.clone() };
                let mut socket = XdpSocket::from_parts(parts)?;
                socket.on_gone(move || told.mention(&Said::DeviceGone));
                let socket = Coalescing::new(socket);
                self.joined(Counting::new(socket, &counters), &counters)?
            }
        };
        let mut config = self.shape.config(&*port);
        config.stack.receivers = watch;
        Ok(Uplink { config, port, counters, replay: end })
    }

    /// A port, behind links if there are some.
    fn joined(
        &self,
        port: impl Port + Send + 'static,
        counters: &Arc<Tally>,
    ) -> io::Result<Box<dyn Port + Send>> {
        let Some(netem) = &self.shape.netem else { return Ok(Box::new(port)) };
        Ok(Box::new(Counting::new(netem.shaped(port)?, counters)))
    }
}

/// CLOCK_MONOTONIC, which is the engine's clock.
pub fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
