//! Helpers for tests in which the test process contains the engine.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use towpath_client::driver::{self, Driver};
use towpath_engine::{Engine, EngineConfig, Remote};
use towpath_posix::{Posix, attach};

pub struct Inside(pub Engine);

impl driver::TurnedEngine for Inside {
    fn turn(&mut self) -> driver::EngineStep {
        match self.0.turn() {
            towpath_engine::Next::Turn => driver::EngineStep::Turn,
            towpath_engine::Next::Sleep(timeout) => driver::EngineStep::Sleep(timeout),
            towpath_engine::Next::End => driver::EngineStep::End,
        }
    }
    fn busy_poll(&mut self, timeout: Option<Duration>) -> bool {
        self.0.busy_poll(timeout)
    }
    fn begin_sleep(&mut self) -> bool {
        self.0.begin_sleep()
    }
    fn end_sleep(&mut self) {
        self.0.end_sleep();
    }
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
    fn finish(self: Box<Self>) {
        self.0.finish();
    }
}

/// Starts the driver of an engine with loopback only. Returns the driver, and a control socket for
/// this process.
pub fn start_driver(posix: &'static Posix, engine: Engine) -> (&'static Driver, Remote, OwnedFd) {
    let mut engine = engine;
    let (control, remote) = (engine.attach().expect("a channel"), engine.remote());
    let driver = Driver::new(&posix.process, Box::new(Inside(engine))).expect("descriptors");
    (Box::leak(Box::new(driver)), remote, control)
}

pub fn engine() -> Engine {
    Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("an engine")
}

/// Attaches the process to an engine with a stand-by thread of this name. Also returns that thread.
pub fn standing_by(posix: &'static Posix, name: &str) -> (&'static Driver, Remote, JoinHandle<()>) {
    let (tell, told) = mpsc::channel();
    let stands_by = thread::Builder::new().name(name.into()).spawn(move || {
        let engine = engine();
        // Other processes take the end of this thread as the end of the engine.
        let _life = engine.live();
        let (driver, remote, control) = start_driver(posix, engine);
        tell.send((driver, remote, control)).expect("it is waited for");
        driver.stand_by();
    });
    let (driver, remote, control) = told.recv().expect("it begins");
    attach::over(posix, control.into(), Some(driver)).expect("it is let in");
    (driver, remote, stands_by.expect("a thread"))
}
