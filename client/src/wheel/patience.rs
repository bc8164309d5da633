//! How long a thread that waits turns the engine for others.

/// Wake-ups for others, after which a thread retires. Few enough that an idle one costs little, and
/// more than come by chance in a row where several are busy.
const IN_VAIN_MAX: u32 = 8;

/// One wait of a thread, as far as it is about the wheel.
///
/// A thread whose socket is idle is not to be woken by each packet of a busy one. So who has turned
/// the engine in vain while others came to wait, or sent something, retires: until its wait ends it
/// sleeps as beside any engine, takes the wheel no more, and is not told when that is left. Those
/// others take it when they wait next; meanwhile the thread that stands by sees to the engine, once
/// it has ticked. Where there is none, nobody retires.
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

    /// After a turn that has brought nothing for this thread. One that nobody else can have wanted
    /// costs nothing: `wanted` is the same as after the turn before.
    pub(super) fn has_turned(&mut self, wanted: u32) {
        if self.wanted.replace(wanted).is_some_and(|before| before != wanted) {
            self.wears();
        }
    }

    /// The thread was woken for others.
    pub(super) fn wears(&mut self) {
        self.in_vain += 1;
    }

    /// It was told that the wheel is free, by what tells those who have not retired: it tries once
    /// more.
    pub fn renew(&mut self) {
        self.in_vain = self.in_vain.min(IN_VAIN_MAX - 1);
    }
}
