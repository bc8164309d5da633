//! Runs the registry, which manages processes, on the thread of a shard or on a separate thread.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use std::{io, panic, thread};

use crate::mail::{Mailbox, ShardCommand, ShardReport};
use crate::registry::Registry;
use crate::shard::Shard;

/// Maximum number of message exchanges between the registry (process manager) and shards per
/// iteration of the event loop. Further messages wait for the next iteration.
const EXCHANGES: usize = 4;

/// Owner of an engine's registry, which manages the processes, or of the thread that runs the
/// registry.
pub(crate) struct RegistryHost {
    registry: Option<Box<Registry>>,
    thread: Option<Thread>,
}

/// The thread that runs the registry (process manager). Joining it returns the registry.
struct Thread {
    desks: Vec<RegistryLink>,
    handle: JoinHandle<Box<Registry>>,
}

/// Connection of a shard (event loop) to the registry (process manager), which runs on another
/// thread.
#[derive(Debug, Clone)]
pub(crate) struct RegistryLink {
    orders: Mailbox<ShardCommand>,
    notices: Mailbox<ShardReport>,
}

impl RegistryHost {
    /// Creates a host that runs the registry (process manager) on the shards' thread, between
    /// iterations of their event loops. Work of the registry also ends the first shard's sleep.
    pub fn new(registry: Box<Registry>, first: &mut Shard) -> io::Result<Self> {
        first.watch_registry(registry.as_fd())?;
        Ok(Self { registry: Some(registry), thread: None })
    }

    /// Returns the registry. `None` while it runs on a separate thread.
    pub fn registry(&self) -> Option<&Registry> {
        self.registry.as_deref()
    }

    /// Returns the registry. `None` while it runs on a separate thread.
    pub fn registry_mut(&mut self) -> Option<&mut Registry> {
        self.registry.as_deref_mut()
    }

    /// Exchanges messages between the registry and the shards. Returns true if a shard received a
    /// command.
    pub fn exchange(&mut self, first: &mut Shard, others: &mut [Shard]) -> bool {
        match (&mut self.registry, &mut self.thread) {
            (Some(registry), _) => exchange(registry, first, others),
            // Exchange messages with the first shard (event loop) only. The other shards run on
            // other threads, and exchange their messages themselves.
            (None, Some(thread)) => thread.desks[0].exchange(first),
            (None, None) => false,
        }
    }

    /// Returns the time until the registry or the shards have work. `timeout` is the time until the
    /// shards have work.
    pub fn time_left(&self, first: &Shard, timeout: Option<Duration>) -> Option<Duration> {
        let own = self.registry().and_then(|registry| registry.time_left(first.sockets.now));
        own.into_iter().chain(timeout).min()
    }

    /// Moves the registry (process manager) to a new thread, and returns links to it for `shards`
    /// shards. If no thread can be created, returns `None`; the registry stays here.
    pub fn begin_thread(&mut self, first: &mut Shard, shards: usize) -> Option<Vec<RegistryLink>> {
        let registry = self.registry.take()?;
        match Thread::begin(registry, first, shards) {
            Ok(thread) => self.thread = Some(thread),
            Err(registry) => self.registry = Some(registry),
        }
        self.thread.as_ref().map(|thread| thread.desks.clone())
    }

    /// Ends the thread that runs the registry, if there is one, and takes the registry back. Also
    /// ends the shards on this thread, which are `first` and `others`.
    ///
    /// # Panics
    /// Panics if the registry's thread has panicked, unless this thread is already panicking.
    pub fn end_thread(&mut self, first: &mut Shard, others: &mut [Shard]) {
        let Some(thread) = self.thread.take() else { return };
        match thread.end(first, others) {
            // The thread has returned the registry, and so has ended without a panic.
            Ok(registry) => self.registry = Some(registry),
            Err(panic) if !thread::panicking() => panic::resume_unwind(panic),
            Err(_) => {}
        }
    }
}

fn exchange(registry: &mut Registry, first: &mut Shard, others: &mut [Shard]) -> bool {
    let is_due = registry.time_left(first.sockets.now) == Some(Duration::ZERO);
    if std::mem::take(&mut first.sleep.registry_calls) || is_due {
        registry.look(Some(Duration::ZERO));
    }
    let mut told = false;
    for _ in 0..EXCHANGES {
        let mut is_quiet = true;
        for (number, shard) in std::iter::once(&mut *first).chain(&mut *others).enumerate() {
            is_quiet &= shard.processes.notices.is_empty() && registry.orders[number].is_empty();
            let mut notices = std::mem::take(&mut shard.processes.notices);
            notices.drain(..).for_each(|notice| registry.heed(notice));
            shard.processes.notices = notices;
            let mut orders = std::mem::take(&mut registry.orders[number]);
            told |= !orders.is_empty();
            orders.drain(..).for_each(|order| shard.obey(order));
            registry.orders[number] = orders;
        }
        if is_quiet {
            return told;
        }
    }
    true
}

impl RegistryLink {
    /// Returns the descriptor that becomes readable when the registry (process manager) has sent a
    /// command to this shard.
    pub fn notifier(&self) -> BorrowedFd<'_> {
        self.orders.notifier()
    }

    /// Sends the shard's reports to the registry, and executes the registry's commands. Returns
    /// true if there were commands.
    pub fn exchange(&self, shard: &mut Shard) -> bool {
        self.notices.send(&mut shard.processes.notices);
        let orders = self.orders.take();
        let told = !orders.is_empty();
        orders.into_iter().for_each(|order| shard.obey(order));
        told
    }

    /// Reports to the registry that the shard's event loop has ended.
    pub fn finish(&self, shard: &mut Shard) {
        shard.processes.notices.push(ShardReport::Finished);
        self.notices.send(&mut shard.processes.notices);
        shard.watch_no_more(self.notifier());
    }

    /// Sends the shard (event loop) a command to end its event loop.
    fn stop(&self) {
        self.orders.send(&mut vec![ShardCommand::Stop]);
    }

    /// Reports to the registry (process manager) that the shard has panicked, so that the registry
    /// ends the whole engine.
    pub fn abandon(&self) {
        self.notices.send(&mut vec![ShardReport::Failed, ShardReport::Finished]);
    }
}

impl Thread {
    /// Starts the thread that runs the registry (process manager). If this fails, returns the
    /// registry.
    fn begin(
        mut registry: Box<Registry>,
        first: &mut Shard,
        shards: usize,
    ) -> Result<Self, Box<Registry>> {
        let Ok(desks) = registry_links(shards) else { return Err(registry) };
        if first.watch_mail(desks[0].notifier()).is_err() {
            return Err(registry);
        }
        // Pass the registry to the thread over a channel only once the thread runs. If the thread
        // cannot be created, the registry is not lost.
        let (give, take) = mpsc::channel();
        let theirs = desks.clone();
        let work = move || serve(take.recv().expect("it is sent, or all ends"), &theirs);
        if registry.watch_shards(desks[0].notices.notifier()).is_err() {
            first.watch_no_more(desks[0].notifier());
            return Err(registry);
        }
        let Ok(handle) = Builder::new().name("towpath-control".into()).spawn(work) else {
            first.watch_no_more(desks[0].notifier());
            registry.watch_shards_no_more(desks[0].notices.notifier());
            return Err(registry);
        };
        first.watch_no_more(registry.as_fd());
        give.send(registry).map(|()| Self { desks, handle }).map_err(|error| error.0)
    }

    fn end(self, first: &mut Shard, others: &mut [Shard]) -> thread::Result<Box<Registry>> {
        self.desks.iter().for_each(RegistryLink::stop);
        let mut here: Vec<&mut Shard> = std::iter::once(first).chain(others).collect();
        let desk = |shard: &Shard| &self.desks[shard.sockets.place.number as usize];
        here.iter_mut().for_each(|shard| desk(shard).finish(shard));
        let registry = self.handle.join()?;
        for shard in here {
            desk(shard).orders.take().into_iter().for_each(|order| shard.obey(order));
        }
        Ok(registry)
    }
}

/// Creates one link for each shard. All links share the mailbox for reports to the registry.
fn registry_links(count: usize) -> io::Result<Vec<RegistryLink>> {
    let notices = Mailbox::new()?;
    let desk = |orders| RegistryLink { orders, notices: notices.clone() };
    (0..count).map(|_| Mailbox::new().map(desk)).collect()
}

/// Stops the event loops of all shards if the registry panics, because dropping it sends the stop
/// command.
struct PanicAlarm<'a>(&'a [RegistryLink]);

impl Drop for PanicAlarm<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.iter().for_each(RegistryLink::stop);
        }
    }
}

/// Runs the registry on a separate thread, until the event loops of all shards have ended.
fn serve(mut registry: Box<Registry>, desks: &[RegistryLink]) -> Box<Registry> {
    let _alarm = PanicAlarm(desks);
    let notices = &desks[0].notices;
    let mut running = desks.len();
    let tell = |registry: &mut Registry| {
        for (orders, desk) in registry.orders.iter_mut().zip(desks) {
            desk.orders.send(orders);
        }
    };
    loop {
        tell(&mut registry);
        let timeout = registry.time_left(registry.clock.now());
        registry.look(timeout);
        // Send commands before reports are handled, because that may take a while: a report may
        // call the gatekeeper.
        tell(&mut registry);
        for notice in notices.take() {
            match notice {
                ShardReport::Finished => running -= 1,
                notice => registry.heed(notice),
            }
        }
        if running == 0 {
            registry.watch_shards_no_more(notices.notifier());
            return registry;
        }
    }
}
