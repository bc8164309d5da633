//! Where the registry is turned: by a shard's thread, or by one of its own.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;
use std::{io, panic, thread};

use crate::mail::{Mailbox, ShardCommand, ShardReport};
use crate::registry::Registry;
use crate::shard::Shard;

/// How often each is heard in one turn of both: what one says in answer to the other's answer is
/// for the next turn.
const EXCHANGES: usize = 4;

/// The registry of an engine, and its thread. The registry is held here, or by the thread.
pub(crate) struct RegistryHost {
    registry: Option<Box<Registry>>,
    thread: Option<Thread>,
}

/// The thread that has the registry, which gives it back in the end.
struct Thread {
    desks: Vec<RegistryLink>,
    handle: JoinHandle<Box<Registry>>,
}

/// A shard's way to a registry that has a thread.
#[derive(Debug, Clone)]
pub(crate) struct RegistryLink {
    orders: Mailbox<ShardCommand>,
    notices: Mailbox<ShardReport>,
}

impl RegistryHost {
    /// A registry that is turned between turns of the shards, the first of which sleeps for it,
    /// too.
    pub fn new(registry: Box<Registry>, first: &mut Shard) -> io::Result<Self> {
        first.watch_registry(registry.as_fd())?;
        Ok(Self { registry: Some(registry), thread: None })
    }

    /// None: it has a thread.
    pub fn registry(&self) -> Option<&Registry> {
        self.registry.as_deref()
    }

    /// None: it has a thread.
    pub fn registry_mut(&mut self) -> Option<&mut Registry> {
        self.registry.as_deref_mut()
    }

    /// Exchanges messages between registry and shards. Returns true if a shard received an order.
    pub fn exchange(&mut self, first: &mut Shard, others: &mut [Shard]) -> bool {
        match (&mut self.registry, &mut self.thread) {
            (Some(registry), _) => exchange(registry, first, others),
            // Other shards run on their own threads and exchange messages themselves.
            (None, Some(thread)) => thread.desks[0].exchange(first),
            (None, None) => false,
        }
    }

    /// How long all may sleep when the shards may so long.
    pub fn time_left(&self, first: &Shard, timeout: Option<Duration>) -> Option<Duration> {
        let own = self.registry().and_then(|registry| registry.time_left(first.sockets.now));
        own.into_iter().chain(timeout).min()
    }

    /// Gives the registry a thread, and returns the desks of so many shards. None: no thread could
    /// be made, and the registry stays here.
    pub fn begin_thread(&mut self, first: &mut Shard, shards: usize) -> Option<Vec<RegistryLink>> {
        let registry = self.registry.take()?;
        match Thread::begin(registry, first, shards) {
            Ok(thread) => self.thread = Some(thread),
            Err(registry) => self.registry = Some(registry),
        }
        self.thread.as_ref().map(|thread| thread.desks.clone())
    }

    /// Ends the thread, if there is one, and takes the registry back. `first` and `others` are the
    /// shards that no other thread has; they end, too.
    ///
    /// # Panics
    /// When the thread has, unless this one does already.
    pub fn end_thread(&mut self, first: &mut Shard, others: &mut [Shard]) {
        let Some(thread) = self.thread.take() else { return };
        match thread.end(first, others) {
            // No process waits for the registry's descriptors any more.
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
    /// Rung when there are orders.
    pub fn notifier(&self) -> BorrowedFd<'_> {
        self.orders.notifier()
    }

    /// Says what the shard has to say, and tells it what there is. True: there was something.
    pub fn exchange(&self, shard: &mut Shard) -> bool {
        self.notices.send(&mut shard.processes.notices);
        let orders = self.orders.take();
        let told = !orders.is_empty();
        orders.into_iter().for_each(|order| shard.obey(order));
        told
    }

    /// The shard's loop is over.
    pub fn finish(&self, shard: &mut Shard) {
        shard.processes.notices.push(ShardReport::Finished);
        self.notices.send(&mut shard.processes.notices);
        shard.watch_no_more(self.notifier());
    }

    /// Lets the shard end its loop.
    fn stop(&self) {
        self.orders.send(&mut vec![ShardCommand::Stop]);
    }

    /// The shard has ended without a word: so does everything.
    pub fn abandon(&self) {
        self.notices.send(&mut vec![ShardReport::Failed, ShardReport::Finished]);
    }
}

impl Thread {
    /// The registry comes back when there can be no thread.
    fn begin(
        mut registry: Box<Registry>,
        first: &mut Shard,
        shards: usize,
    ) -> Result<Self, Box<Registry>> {
        let Ok(desks) = registry_links(shards) else { return Err(registry) };
        if first.watch_mail(desks[0].notifier()).is_err() {
            return Err(registry);
        }
        // The thread gets the registry through the channel once it runs.
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

/// Desks, one for each shard, with one common box for notices.
fn registry_links(count: usize) -> io::Result<Vec<RegistryLink>> {
    let notices = Mailbox::new()?;
    let desk = |orders| RegistryLink { orders, notices: notices.clone() };
    (0..count).map(|_| Mailbox::new().map(desk)).collect()
}

/// Ends the shards' loops when the registry's ends first, which it does by a panic.
struct PanicAlarm<'a>(&'a [RegistryLink]);

impl Drop for PanicAlarm<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.iter().for_each(RegistryLink::stop);
        }
    }
}

/// Body of the registry's thread, until all shards have finished.
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
        // The orders are told first: a notice may take a while, because a gatekeeper is called for
        // it.
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
