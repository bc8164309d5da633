//! A server on one side that handles one client.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::workloads::Programs;
use crate::bench::cases::PORT;
use crate::bench::sides::Side;
use crate::bench::world::{Scratch, World};
use crate::interrupt;
use crate::running::Running;

/// Function that returns a server's command from the directory of programs and a directory for its
/// files.
pub type Words = fn(programs: &Path, scratch: &Path) -> Vec<String>;

/// A server that accepts connections. Ended when dropped.
pub struct Server {
    // Dropped first, so that the program ends before its namespaces.
    run: Running,
    pub world: World,
    _scratch: Scratch,
}

impl Server {
    /// Starts a server. `wrap` is put before its command.
    pub fn start(
        words: Words,
        side: Side,
        wrap: &[String],
        programs: Programs<'_>,
    ) -> Result<Self> {
        let world = World::new(side)?;
        let scratch = Scratch::new(world.client().name())?;
        let server = words(programs.tools, &scratch.0);
        let line = side.line(programs.towpath, &[PORT.to_string()], server)?;
        let line = [wrap, &line].concat();
        let run = Running(world.command(world.server(), &line).spawn().context("server")?);
        let server = Self { run, world, _scratch: scratch };
        server.wait()?;
        server.world.use_cubic()?;
        Ok(server)
    }

    /// Returns the process id of towpath, or of the program without towpath.
    pub fn pid(&self) -> u32 {
        self.run.0.id()
    }

    fn wait(&self) -> Result<()> {
        let host = self.world.host();
        let script =
            format!("import socket; socket.create_connection(('{host}',{PORT}),1).close()");
        let line = ["python3".to_owned(), "-c".to_owned(), script];
        let end = Instant::now() + Duration::from_secs(15);
        while !self.world.command(self.world.client(), &line).status()?.success() {
            ensure!(Instant::now() < end, "{}: no server on {host}:{PORT}", self.world.side);
            interrupt::sleep(Duration::from_millis(50))?;
        }
        Ok(())
    }
}
