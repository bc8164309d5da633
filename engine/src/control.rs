//! Where the registry is turned: by the shard's thread, or by one of its own.

use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::mail::{Mailbox, Notice, Order};
use crate::registry::Registry;
use crate::shard::Shard;

/// How often each is heard in one turn of both: what one says in answer to the other's answer is for the next turn.
const EXCHANGES: usize = 4;

/// The registry of an engine, and its thread. It is where the shard is, or with the thread.
pub(crate) struct Control {
    registry: Option<Box<Registry>>,
    thread: Option<Thread>,
}

/// The thread that has the registry, which gives it back in the end.
struct Thread {
    orders: Mailbox<Order>,
    notices: Mailbox<Notice>,
    handle: JoinHandle<Box<Registry>>,
}

impl Control {
    /// A registry that is turned between turns of a shard.
    pub fn new(registry: Box<Registry>, shard: &mut Shard) -> io::Result<Self> {
        shard.watch_registry(registry.as_fd())?;
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

    /// Both do what the other wants. True: the shard has been told something.
    pub fn exchange(&mut self, shard: &mut Shard) -> bool {
        match (&mut self.registry, &mut self.thread) {
            (Some(registry), _) => exchange(registry, shard),
            (None, Some(thread)) => thread.exchange(shard),
            (None, None) => false,
        }
    }

    /// How long both may sleep when the shard may so long.
    pub fn time_left(&self, shard: &Shard, timeout: Option<Duration>) -> Option<Duration> {
        let own = self.registry().and_then(|registry| registry.time_left(shard.host.now));
        own.into_iter().chain(timeout).min()
    }

    /// Gives the registry a thread. It stays here if there is none to be had.
    pub fn begin_thread(&mut self, shard: &mut Shard) {
        let Some(registry) = self.registry.take() else { return };
        match Thread::begin(registry, shard) {
            Ok(thread) => self.thread = Some(thread),
            Err(registry) => self.registry = Some(registry),
        }
    }

    /// Ends the thread, if there is one: the registry is here again.
    ///
    /// # Panics
    /// When the thread has, unless this one does already.
    pub fn end_thread(&mut self, shard: &mut Shard) {
        let Some(thread) = self.thread.take() else { return };
        match thread.end(shard) {
            Ok(registry) => {
                // Its descriptors are not waited for any more: nothing has to be watched.
                self.registry = Some(registry);
            }
            Err(panic) if !std::thread::panicking() => std::panic::resume_unwind(panic),
            Err(_) => {}
        }
    }
}

fn exchange(registry: &mut Registry, shard: &mut Shard) -> bool {
    let is_due = registry.time_left(shard.host.now) == Some(Duration::ZERO);
    if std::mem::take(&mut shard.registry_calls) || is_due {
        registry.look(Some(Duration::ZERO));
    }
    let mut told = false;
    for _ in 0..EXCHANGES {
        if registry.orders.is_empty() && shard.notices.is_empty() {
            break;
        }
        let mut notices = std::mem::take(&mut shard.notices);
        notices.drain(..).for_each(|notice| registry.heed(notice));
        shard.notices = notices;
        let mut orders = std::mem::take(&mut registry.orders);
        told |= !orders.is_empty();
        orders.drain(..).for_each(|order| shard.obey(order));
        registry.orders = orders;
    }
    told || !shard.notices.is_empty()
}

impl Thread {
    /// The registry comes back when there can be no thread.
    fn begin(registry: Box<Registry>, shard: &mut Shard) -> Result<Self, Box<Registry>> {
        let (Ok(orders), Ok(notices)) = (Mailbox::new(), Mailbox::new()) else {
            return Err(registry);
        };
        let (to_shard, from_shard) = (orders.clone(), notices.clone());
        // It goes to the thread when that is there.
        let (give, take) = mpsc::channel();
        let work = move || {
            let registry = take.recv().expect("it is sent, or all ends");
            serve(registry, &to_shard, &from_shard)
        };
        if shard.watch_registry(orders.bell()).is_err() {
            return Err(registry);
        }
        let Ok(handle) = Builder::new().name("towpath-control".into()).spawn(work) else {
            shard.watch_registry_no_more(orders.bell());
            return Err(registry);
        };
        shard.watch_registry_no_more(registry.as_fd());
        if let Err(mpsc::SendError(registry)) = give.send(registry) {
            // The thread is gone, which cannot be before it has received something.
            return Err(registry);
        }
        Ok(Self { orders, notices, handle })
    }

    fn exchange(&mut self, shard: &mut Shard) -> bool {
        self.notices.send(&mut shard.notices);
        shard.registry_calls = false;
        let orders = self.orders.take();
        let told = !orders.is_empty();
        orders.into_iter().for_each(|order| shard.obey(order));
        told
    }

    fn end(self, shard: &mut Shard) -> std::thread::Result<Box<Registry>> {
        shard.notices.push(Notice::Finished);
        self.notices.send(&mut shard.notices);
        let registry = self.handle.join()?;
        shard.watch_registry_no_more(self.orders.bell());
        self.orders.take().into_iter().for_each(|order| shard.obey(order));
        Ok(registry)
    }
}

/// Ends the shard's loop when the registry's ends first, which it does by a panic.
struct Alarm<'a>(&'a Mailbox<Order>);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.send(&mut vec![Order::Stop]);
        }
    }
}

/// What the thread does until the shard has finished.
fn serve(
    mut registry: Box<Registry>,
    orders: &Mailbox<Order>,
    notices: &Mailbox<Notice>,
) -> Box<Registry> {
    let _alarm = Alarm(orders);
    registry.watch_shard(notices.bell()).expect("the registry's own epoll works");
    // What was said before the thread began.
    orders.send(&mut registry.orders);
    loop {
        let timeout = registry.time_left(registry.clock.now());
        registry.look(timeout);
        for notice in notices.take() {
            if matches!(notice, Notice::Finished) {
                registry.watch_shard_no_more(notices.bell());
                return registry;
            }
            registry.heed(notice);
        }
        orders.send(&mut registry.orders);
    }
}
