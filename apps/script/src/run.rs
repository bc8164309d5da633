//! Runs a script: performs its events in virtual time, and compares the stack's packets with the
//! expected ones.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use towpath_pcap::Direction;
use towpath_stack::Instant;

use crate::code::{self, Variables};
use crate::compare::{self, Relaxations};
use crate::flow::{ScriptFlow, timestamps};
use crate::knobs::{IpVersion, Knobs};
use crate::sockets::{CallCx, CallOutcome, CallProgress, CallResult, OpenFiles};
use crate::syntax::symbols;
use crate::syntax::{
    CallSpec, EventAction, EventTime, IcmpSpec, PacketSpec, Script, ScriptEvent, TcpSpec,
};
use crate::wire::{self, PacketEnds, WireSegment, flag};
use crate::world::{ScriptWorld, SentPacket};

/// Time of the stack's clock at the start of a script. Must not be 0, because 0 means "never".
pub const START: Instant = Instant(1_000_000_000_000);

/// Maximum number of lines in the history of a failure.
const HISTORY_MAX: usize = 400;

/// Port of either endpoint if the script does not choose one.
const PORT: u16 = 8080;

/// Recorded packet, with its time since the start of the script.
#[derive(Debug, Clone)]
pub struct CapturedPacket {
    /// Time since the start of the script in ns.
    pub at_ns: u64,
    /// Direction of the packet as seen from the stack.
    pub direction: Direction,
    /// Bytes of the IP packet.
    pub bytes: Vec<u8>,
}

/// Reason why the run of a script ended early.
#[derive(Debug)]
pub enum Stop {
    /// The script failed at this line.
    Failed { line: usize, message: String },
    /// The stack chose this initial sequence number, but the script requires another one.
    SequenceNumber(u32),
}

type Step = Result<(), Stop>;

/// System call that blocks.
struct PendingCall<'a> {
    line: usize,
    call: &'a CallSpec,
    progress: CallProgress,
    end: Instant,
}

/// Interval in which an event is expected.
#[derive(Clone, Copy)]
struct TimeWindow {
    earliest: Instant,
    latest: Instant,
}

/// State of the run of a script.
pub struct ScriptRunner<'a> {
    script: &'a Script,
    relax: Relaxations,
    /// Whether the script fails if a packet was taken by no event.
    strict: bool,
    knobs: Knobs,
    world: ScriptWorld,
    descriptors: OpenFiles,
    flow: ScriptFlow,
    /// Earlier connections of the script. Their packets are ignored.
    old_flows: Vec<ScriptFlow>,
    /// Whether the next SYN of the script starts a new connection, because a new listener was
    /// created.
    expects_syn: bool,
    /// Whether the script has closed its last connection.
    closed: bool,
    pending: Vec<PendingCall<'a>>,
    variables: Variables,
    start: Instant,
    /// Time of the previous event, to which relative times refer.
    base: Instant,
    pub history: Vec<String>,
    pub captured: Vec<CapturedPacket>,
}

impl<'a> ScriptRunner<'a> {
    /// Creates the runner of a script, with a new host.
    pub fn new(
        script: &'a Script,
        knobs: Knobs,
        relax: Relaxations,
        strict: bool,
        start: Instant,
    ) -> Self {
        let (local, remote) = addresses(&knobs);
        let world = ScriptWorld::new(knobs.stack.clone(), &[local.ip()], knobs.mtu, start);
        let flow = ScriptFlow::new(local, remote, knobs.remote_isn);
        Self {
            script,
            relax,
            strict,
            knobs,
            world,
            descriptors: OpenFiles::default(),
            flow,
            old_flows: Vec::new(),
            expects_syn: false,
            closed: false,
            pending: Vec::new(),
            variables: Variables::new(),
            start,
            base: start,
            history: Vec::new(),
            captured: Vec::new(),
        }
    }

    /// Runs all events of the script.
    ///
    /// # Errors
    /// Returns the first event that failed.
    pub fn run(&mut self) -> Step {
        for event in &self.script.events {
            self.run_event(event)?;
        }
        let end = self.pending.iter().map(|call| call.end + self.tolerance()).max();
        if let Some(end) = end {
            self.advance(end)?;
        }
        if let Some(call) = self.pending.first() {
            return Err(fail(call.line, format!("{} did not return", call.call.name)));
        }
        if self.strict { self.refuse_leftovers() } else { Ok(()) }
    }

    fn run_event(&mut self, event: &'a ScriptEvent) -> Step {
        let window = self.window(event.time);
        if let EventAction::Expect(packet) = &event.action {
            let PacketSpec::Tcp(spec) = packet else {
                return Err(fail(event.line, "expecting an ICMP message is not supported".into()));
            };
            let is_any = event.time == EventTime::Any;
            let sent = self.expect(event.line, spec, (!is_any).then_some(window))?;
            let is_range = matches!(event.time, EventTime::Within(..) | EventTime::Between(..));
            self.base = if is_any || is_range { sent } else { window.earliest };
            return Ok(());
        }
        self.advance(window.earliest)?;
        self.base = if event.time == EventTime::Any { self.world.now } else { window.earliest };
        match &event.action {
            EventAction::Receive(PacketSpec::Tcp(spec)) => self.receive(event.line, spec)?,
            EventAction::Receive(PacketSpec::Icmp(spec)) => self.receive_icmp(event.line, spec)?,
            EventAction::Call(call) => self.call(event.line, call, window.latest)?,
            EventAction::Code(code) => self.assert(event.line, code)?,
            EventAction::Command(command) => self.command(event.line, command)?,
            EventAction::Expect(_) => {}
        }
        self.repeat_calls()
    }

    /// Returns the interval in which an event is expected. For a call, returns its start and its
    /// end.
    fn window(&self, time: EventTime) -> TimeWindow {
        let at = |base: Instant, us: i64| base + Duration::from_micros(us.unsigned_abs());
        let (earliest, latest) = match time {
            EventTime::Any => (self.world.now, self.world.now),
            EventTime::At(us) => (at(self.start, us), at(self.start, us)),
            EventTime::After(us) => (at(self.base, us), at(self.base, us)),
            EventTime::Between(a, b) | EventTime::Lasting(a, b) => {
                (at(self.start, a), at(self.start, b))
            }
            EventTime::Within(a, b) | EventTime::LastingAfter(a, b) => {
                (at(self.base, a), at(self.base, b))
            }
        };
        TimeWindow { earliest, latest: latest.max(earliest) }
    }

    fn tolerance(&self) -> Duration {
        Duration::from_micros(self.knobs.tolerance_us.unsigned_abs())
    }

    /// Advances the clock to the time `to`, and handles all timers on the way.
    fn advance(&mut self, to: Instant) -> Step {
        while let Some(next) = self.next_timeout().filter(|next| *next <= to) {
            self.step(next)?;
        }
        if to > self.world.now { self.step(to) } else { Ok(()) }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let deadlines = self.pending.iter().filter_map(|call| call.progress.deadline);
        deadlines.chain(self.world.next_timeout()).min()
    }

    fn step(&mut self, to: Instant) -> Step {
        // Always advance the clock. Otherwise a timer that stays due would stop it forever.
        let to = if to > self.world.now { to } else { self.world.now + Duration::from_micros(1) };
        self.world.step(to);
        self.repeat_calls()
    }

    fn repeat_calls(&mut self) -> Step {
        for mut pending in std::mem::take(&mut self.pending) {
            if let Some(result) = self.attempt(pending.line, pending.call, &mut pending.progress)? {
                self.finish_call(pending.line, pending.call, &result, pending.end)?;
            } else if self.world.now > pending.end + self.tolerance() {
                let end = self.since_start(pending.end);
                let text = format!("{} did not return by {end}", pending.call.name);
                return Err(fail(pending.line, text));
            } else {
                self.pending.push(pending);
            }
        }
        Ok(())
    }

    fn call(&mut self, line: usize, call: &'a CallSpec, end: Instant) -> Step {
        if call.name == "listen" {
            self.expects_syn = true;
        }
        let mut progress = CallProgress::default();
        match self.attempt(line, call, &mut progress)? {
            Some(result) => self.finish_call(line, call, &result, end),
            None => {
                progress.slept = true;
                self.pending.push(PendingCall { line, call, progress, end });
                Ok(())
            }
        }
    }

    /// Attempts a system call. Returns `None` if the call blocks.
    fn attempt(
        &mut self,
        line: usize,
        call: &CallSpec,
        progress: &mut CallProgress,
    ) -> Result<Option<CallResult>, Stop> {
        let (local, remote) = addresses(&self.knobs);
        let Self { world, knobs, descriptors, .. } = self;
        let mut cx = CallCx { world, knobs, progress, local, remote };
        match descriptors.call(&mut cx, call) {
            Ok(CallOutcome::Done(result)) => Ok(Some(result)),
            Ok(CallOutcome::Blocked) => Ok(None),
            Err(reason) => Err(fail(line, reason)),
        }
    }

    fn finish_call(
        &mut self,
        line: usize,
        call: &CallSpec,
        result: &CallResult,
        end: Instant,
    ) -> Step {
        let errno = result.errno.map(|name| format!(" {name}")).unwrap_or_default();
        self.note(&format!("{}(...) = {}{errno}", call.name, result.value));
        let now = self.world.now;
        if now + self.tolerance() < end || now > end + self.tolerance() {
            let (now, end) = (self.since_start(now), self.since_start(end));
            return Err(fail(line, format!("{} returned at {now}, not at {end}", call.name)));
        }
        let number = |name: &str| symbols::errno(name);
        let wanted = call.errno.as_deref();
        let is_same_error = wanted.and_then(number) == result.errno.and_then(number);
        if call.name == "close" {
            self.closed = self.descriptors.has_no_connection() && !self.old_flows.is_empty();
        }
        if !call.result.matches(&crate::syntax::value::Value::Int(result.value)) || !is_same_error {
            let expected =
                format!("{}{}", call.result, wanted.map_or(String::new(), |e| format!(" {e}")));
            let text = format!("{} returned {}{errno}, not {expected}", call.name, result.value);
            return Err(fail(line, text));
        }
        for (at, actual) in &result.outs {
            let Some(expected) = call.args.get(*at) else { continue };
            if !expected.matches(actual) && !self.is_size(call) {
                let text = format!("{} gave {actual}, not {expected}", call.name);
                return Err(fail(line, text));
            }
        }
        Ok(())
    }

    fn is_size(&self, call: &CallSpec) -> bool {
        let name = call.args.get(2).and_then(|name| name.int());
        let is_size = name == Some(symbols::SO_RCVBUF) || name == Some(symbols::SO_SNDBUF);
        self.relax.sizes && call.name == "getsockopt" && is_size
    }

    fn receive(&mut self, line: usize, spec: &TcpSpec) -> Step {
        let is_syn = spec.flags & (flag::SYN | flag::ACK | flag::RST) == flag::SYN;
        // After the last connection was closed, a SYN with options starts a new connection. A SYN
        // without options may be a test of the closed one.
        let has_options = spec.options.as_ref().is_some_and(|options| !options.is_empty());
        let reopens = self.closed && has_options;
        if is_syn && (self.expects_syn || reopens) {
            self.begin_flow();
        }
        let segment = self.flow.translate(spec);
        let bytes = wire::emit_segment(self.flow.inbound(), &segment);
        let bytes = bytes.map_err(|reason| fail(line, reason))?;
        self.note(&format!("< {}", self.spec_text(spec)));
        self.inject(bytes);
        Ok(())
    }

    /// Starts a new connection, from another port of the peer.
    fn begin_flow(&mut self) {
        (self.expects_syn, self.closed) = (false, false);
        let next = self.old_flows.len() as u16;
        let remote = SocketAddr::new(self.flow.remote.ip(), 40_000 + next);
        let (local, _) = addresses(&self.knobs);
        let local = SocketAddr::new(wire_ip(local.ip()), local.port());
        let flow = ScriptFlow::new(local, remote, self.knobs.remote_isn);
        self.old_flows.push(std::mem::replace(&mut self.flow, flow));
    }

    fn receive_icmp(&mut self, line: usize, spec: &IcmpSpec) -> Step {
        let ends = self.flow.inbound();
        let kind = if ends.to.is_ipv4() { spec.kind.v4 } else { spec.kind.v6 };
        let Some(kind) = kind else {
            return Err(fail(line, "the IP version has no such ICMP message".into()));
        };
        let quoted = WireSegment {
            ecn: 0,
            flags: flag::ACK,
            seq: self.flow.live_seq(spec.quoted.0),
            ack: 0,
            window: 0,
            urgent: 0,
            options: Vec::new(),
            len: spec.quoted.1,
        };
        let outbound = PacketEnds { from: ends.to, to: ends.from };
        let quoted = wire::emit_segment(outbound, &quoted).map_err(|reason| fail(line, reason))?;
        let bytes = wire::emit_icmp(ends, kind, spec.mtu, &quoted);
        self.note(&format!("< icmp type {} code {}", kind.0, kind.1));
        self.inject(bytes);
        Ok(())
    }

    fn inject(&mut self, bytes: Vec<u8>) {
        let at_ns = self.world.now.0 - self.start.0;
        let packet = CapturedPacket { at_ns, direction: Direction::Inbound, bytes: bytes.clone() };
        self.captured.push(packet);
        self.world.inject(bytes);
    }

    fn assert(&mut self, line: usize, code: &str) -> Step {
        let info = self.descriptors.info(&self.world);
        code::set_info(&mut self.variables, info.as_ref());
        code::run(code, &mut self.variables).map_err(|reason| fail(line, reason))
    }

    fn command(&mut self, line: usize, command: &str) -> Step {
        let is_first = self.world.host.sockets.is_empty();
        let before = self.knobs.stack.tcp;
        let mut set = self.knobs.run_command(command);
        if !is_first && self.knobs.stack.tcp != before {
            set = Err(format!("'{command}' must precede the first socket"));
        }
        match set {
            Err(reason) if !self.relax.commands => return Err(fail(line, reason)),
            _ => {}
        }
        if is_first {
            // Create a new host with the changed settings, because the script has no socket yet.
            let local = addresses(&self.knobs).0;
            let Knobs { stack, mtu, .. } = &self.knobs;
            self.world = ScriptWorld::new(stack.clone(), &[local.ip()], *mtu, self.world.now);
        }
        Ok(())
    }

    /// Waits for a packet, and compares it with the expected one. Returns the time at which the
    /// packet was sent.
    fn expect(
        &mut self,
        line: usize,
        spec: &TcpSpec,
        window: Option<TimeWindow>,
    ) -> Result<Instant, Stop> {
        let latest = window.map(|window| window.latest + self.tolerance());
        let is_syn = spec.flags & (flag::SYN | flag::ACK) == flag::SYN;
        let sent = self.wait_for_packet(line, latest, is_syn)?;
        let mut live = self.flow_segment(line, spec, &sent)?;
        self.flow.learn(spec, &live);
        self.note_sent(&sent, &live);
        while !self.knobs.strict_segments && live.len < spec.len && live.len > 0 {
            let next = self.wait_for_packet(line, latest, is_syn)?;
            let Some((_, segment)) = wire::parse_segment(&next.bytes) else { break };
            self.note_sent(&next, &segment);
            if segment.seq != live.seq.wrapping_add(live.len) || segment.ack != live.ack {
                live = segment;
                break;
            }
            live = WireSegment { seq: live.seq, len: live.len + segment.len, ..segment };
        }
        let actual = self.flow.to_script(&live);
        let difference = compare::difference(spec, &actual, self.relax);
        let difference = difference.or_else(|| self.clock_difference(spec, &live));
        if let Some(field) = difference {
            let text = format!(
                "the {field} differs\n  expected > {}\n  actual   > {actual}",
                self.spec_text(spec)
            );
            return Err(fail(line, text));
        }
        if let Some(window) = window
            && sent.at + self.tolerance() < window.earliest
        {
            let text = format!(
                "the packet was sent at {}, expected at {}",
                self.since_start(sent.at),
                self.since_start(window.earliest)
            );
            return Err(fail(line, text));
        }
        Ok(sent.at)
    }

    fn clock_difference(&self, spec: &TcpSpec, live: &WireSegment) -> Option<&'static str> {
        let wanted = spec.options.as_deref().and_then(timestamps)?.0;
        let error = self.flow.clock_error(wanted, timestamps(&live.options)?.0);
        let error_us = i64::from(error) * i64::from(self.knobs.tick_us);
        (error_us > self.knobs.tolerance_us).then_some("timestamp")
    }

    /// Waits for the next packet of the current connection, or of a new one, and returns it.
    fn wait_for_packet(
        &mut self,
        line: usize,
        latest: Option<Instant>,
        is_syn: bool,
    ) -> Result<SentPacket, Stop> {
        loop {
            while let Some(sent) = self.world.pop_sent() {
                let at_ns = sent.at.0 - self.start.0;
                let bytes = sent.bytes.clone();
                self.captured.push(CapturedPacket { at_ns, direction: Direction::Outbound, bytes });
                if self.is_watched(&sent, is_syn) {
                    if latest.is_some_and(|latest| sent.at > latest) {
                        return Err(self.missing(line, latest, Some(&sent)));
                    }
                    return Ok(sent);
                }
            }
            let next = self.next_timeout();
            match (next, latest) {
                (Some(next), Some(latest)) if next <= latest => self.step(next)?,
                (Some(next), None) => self.step(next)?,
                _ => {
                    if let Some(latest) = latest {
                        self.advance(latest)?;
                    }
                    if self.world.peek_sent().is_none() {
                        return Err(self.missing(line, latest, None));
                    }
                }
            }
        }
    }

    fn missing(&self, line: usize, latest: Option<Instant>, sent: Option<&SentPacket>) -> Stop {
        let by =
            latest.map_or("ever".to_owned(), |latest| format!("by {}", self.since_start(latest)));
        let next = sent.map_or(String::new(), |sent| {
            let text = wire::parse_segment(&sent.bytes)
                .map_or(String::new(), |(_, live)| self.flow.to_script(&live).to_string());
            format!("; the next was sent at {}: {text}", self.since_start(sent.at))
        });
        fail(line, format!("no packet was sent {by}{next}"))
    }

    /// Returns whether a packet belongs to the current connection, or starts one. If the script
    /// expects a SYN (`is_syn`), it has left the current connection.
    fn is_watched(&self, sent: &SentPacket, is_syn: bool) -> bool {
        let Some((ends, segment)) = wire::parse_segment(&sent.bytes) else { return false };
        let is_open = segment.has(flag::SYN) && !segment.has(flag::ACK);
        let is_old = self.old_flows.iter().any(|flow| flow.sends(ends));
        self.flow.sends(ends) && (is_open || !is_syn) || is_open && !is_old
    }

    fn flow_segment(
        &mut self,
        line: usize,
        spec: &TcpSpec,
        sent: &SentPacket,
    ) -> Result<WireSegment, Stop> {
        let Some((ends, live)) = wire::parse_segment(&sent.bytes) else {
            return Err(fail(line, "the packet is not a TCP segment".into()));
        };
        if !self.flow.sends(ends) {
            let flow = ScriptFlow::new(ends.from, ends.to, self.knobs.remote_isn);
            self.old_flows.push(std::mem::replace(&mut self.flow, flow));
        }
        let has_isn = live.has(flag::SYN) && spec.flags & flag::SYN != 0;
        if let Some(wanted) = self.knobs.local_isn.filter(|_| has_isn)
            && live.seq.wrapping_sub(spec.seq) != wanted
            && self.start == START
        {
            return Err(Stop::SequenceNumber(live.seq.wrapping_sub(spec.seq)));
        }
        Ok(live)
    }

    fn refuse_leftovers(&mut self) -> Step {
        let line = self.script.events.last().map_or(0, |event| event.line);
        while let Some(sent) = self.world.pop_sent() {
            if !self.is_watched(&sent, false) {
                continue;
            }
            let Some((_, live)) = wire::parse_segment(&sent.bytes) else { continue };
            let (at, live) = (self.since_start(sent.at), self.flow.to_script(&live));
            return Err(fail(line, format!("no event expects the packet sent at {at}: {live}")));
        }
        Ok(())
    }

    fn note_sent(&mut self, sent: &SentPacket, live: &WireSegment) {
        let text = self.flow.to_script(live).to_string();
        let at = self.since_start(sent.at);
        self.push_history(format!("{at} > {text}"));
    }

    fn note(&mut self, text: &str) {
        let at = self.since_start(self.world.now);
        self.push_history(format!("{at} {text}"));
    }

    fn push_history(&mut self, line: String) {
        if self.history.len() < HISTORY_MAX {
            self.history.push(line);
        }
    }

    fn since_start(&self, at: Instant) -> String {
        let micros = at.0.saturating_sub(self.start.0) / 1_000;
        format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
    }

    /// Formats a segment of the script as text.
    fn spec_text(&self, spec: &TcpSpec) -> String {
        let segment = WireSegment {
            ecn: if let crate::syntax::EcnSpec::Codepoint(ecn) = spec.ecn { ecn } else { 0 },
            flags: spec.flags,
            seq: spec.seq,
            ack: spec.ack.unwrap_or(0),
            window: spec.window.unwrap_or(0),
            urgent: spec.urgent.unwrap_or(0),
            options: spec.options.clone().unwrap_or_default(),
            len: spec.len,
        };
        let text = segment.to_string();
        if spec.window.is_none() { text.replace(" win 0", "") } else { text }
    }
}

fn fail(line: usize, message: String) -> Stop {
    Stop::Failed { line, message }
}

/// Returns the default addresses of the stack and the peer, in the form in which packets contain
/// them.
fn addresses(knobs: &Knobs) -> (SocketAddr, SocketAddr) {
    let (local, remote): (IpAddr, IpAddr) = match knobs.version {
        IpVersion::V6 => (
            IpAddr::from([0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 1]),
            IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
        ),
        _ => (IpAddr::from([192, 168, 0, 1]), IpAddr::from([192, 0, 2, 1])),
    };
    let address = |ip: Option<IpAddr>, default| SocketAddr::new(ip.unwrap_or(default), PORT);
    (address(knobs.local_ip, local), address(knobs.remote_ip, remote))
}

fn wire_ip(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}
