//! Engine services that run the handlers of a stack.

use std::io;
use std::sync::Arc;

use towpath_engine::Service;

use super::counters::SharedCounters;
use super::options::MadeService;

/// Engine services of all handlers of a stack, with the counters of the handlers.
#[derive(Default)]
pub(crate) struct HandlerServices {
    /// Services of each handler, in the order of the shards.
    pub services: Vec<Vec<Box<dyn Service>>>,
    pub counters: Vec<Arc<SharedCounters>>,
}

impl HandlerServices {
    /// Adds the services of a handler, one for each shard.
    pub fn add(&mut self, on_shards: impl Iterator<Item = MadeService>) -> io::Result<()> {
        let mut services = Vec::new();
        for made in on_shards {
            let (service, counters) = made?;
            services.push(service);
            self.counters.push(counters);
        }
        self.services.push(services);
        Ok(())
    }
}
