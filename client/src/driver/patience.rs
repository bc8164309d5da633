//! How long a thread that waits turns the engine for others.

/// Wake-ups for others, after which a thread retires. Few enough that an idle one costs little, and
/// more than come by chance in a row where several are busy.
const IN_VAIN_MAX: u32 = 8;

/// Patience of a driver during one wait.
///
/// Packets of a busy socket must not wake a thread whose socket is idle each time. So a thread
/// retires that has turned the engine in vain while others came to wait, or sent something. Until
/// its wait ends it sleeps like a thread without an engine. The thread never takes the driver
/// lock, and is not woken when that is free. Other threads take the lock at their next wait. Until
/// then the stand-by thread turns the engine. Without a stand-by thread no thread retires.
#[derive(Debug, Default)]
pub struct Patience {
    in_vain: u32,
    /// [`Relay::wanted`](towpath_ring::Relay::wanted) when this thread looked last. None: it has
    /// not looked yet.
    wanted: Option<u32>,
}

impl Patience {
    /// Whether the thread has retired.
    pub fn has_ended(&self) -> bool {
        self.in_vain >= IN_VAIN_MAX
    }

    /// Counts a turn that brought nothing for this thread, unless no other thread wanted it:
    /// `wanted` is then the same as after the turn before.
    pub(super) fn has_turned(&mut self, wanted: u32) {
        if self.wanted.replace(wanted).is_some_and(|before| before != wanted) {
            self.wears();
        }
    }

    /// The thread was woken for others.
    pub(super) fn wears(&mut self) {
        self.in_vain += 1;
    }

    /// The thread was woken for the free driver lock, as threads are that have not retired: it
    /// tries once more.
    pub fn renew(&mut self) {
        self.in_vain = self.in_vain.min(IN_VAIN_MAX - 1);
    }
}
