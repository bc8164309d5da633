//! Decides which earlier work must be done before a request is answered.
//!
//! Earlier commands of the same process must be handled first, so a request waits until the command
//! ring of its process is empty.
//!
//! The process may also know of earlier actions of other processes: for example, that a process has
//! ended (waitpid(2)), or has closed a socket. On Linux such an action is complete when the call
//! returns. If a reply depends on such actions, the request is answered in a round. A round begins
//! after all descriptors were polled, because the end of a process may only be visible as the
//! hang-up of its control socket. Then the write position of each command ring is recorded, and the
//! queued closes of sockets are counted. The round's requests are answered when all rings are read
//! up to these positions and these closes are done. Both proceed in batches, so that connections do
//! not wait for them. Later commands belong to the next round, so that a request waits for a
//! bounded amount of work.
//!
//! With several shards, a port or a listener may belong to a socket of a peer shard. Then each of
//! these shards runs a round, and the request waits for all of them. Rounds never wait for each
//! other, except for connections that were closed with their listener in a peer shard.
//!
//! Most replies need no round ([`Sockets::depends_on_shards`]). Unread commands of other processes
//! can only free resources. Therefore the request is tried first, and waits for a round if it fails
//! for lack of a resource. Shared ports are an exception, because a socket may have left the port
//! or stopped sharing it.

use towpath_shm::control::{Request, call, goes_by_socket};
use towpath_stack::ShardId;

use crate::errno::{EADDRINUSE, EADDRNOTAVAIL, EAGAIN, ENOBUFS, EPROTO, Errno};
use crate::ids::ChannelId;
use crate::mail::{ShardReport, Want};
use crate::report::{REQUEST, STACK_TURN};
use crate::shard::peers::message::PeerMessage;
use crate::shard::requests::rounds::{Answer, Asker, RoundWait, Then};
use crate::shard::requests::{RequestCx, Requests};

/// Maximum number of work steps per iteration of the event loop for requests that do not wait for a
/// round (pass over earlier work). The same limit applies separately to those that do. The limit
/// allows about 50 µs of work, or one longer request.
const WORK_A_TURN: u64 = 512;

impl Requests {
    /// Answers requests that are due. `looked` is true if the descriptors were just polled, and
    /// ended processes were removed.
    pub(crate) fn answer_due(&mut self, cx: &mut RequestCx<'_>, looked: bool) {
        if !self.rounds.has_work() {
            return;
        }
        let before = cx.sockets.counters.work;
        while cx.sockets.counters.work - before < WORK_A_TURN
            && let Some(id) = self.rounds.heard.pop_front()
        {
            self.read_request(cx, id);
        }
        while cx.sockets.counters.work - before < WORK_A_TURN
            && let Some(then) = self.rounds.ready.pop_front()
        {
            self.continue_after(cx, then);
        }
        if looked && self.rounds.is_due() && !self.rounds.now.is_empty() {
            self.rounds.begin();
            cx.sockets.ends.begin_round();
            cx.processes.channels.mark();
            self.drain_marked(cx);
        }
        if !self.rounds.has_begun || cx.processes.channels.are_behind_marks() {
            return;
        }
        let rounds = &mut self.rounds;
        let ends = *rounds.ends.get_or_insert_with(|| {
            rounds.awaited = cx.sockets.ends.told_elsewhere();
            cx.sockets.ends.begun()
        });
        if cx.sockets.ends.done() < ends || !cx.sockets.ends.is_settled(&self.rounds.awaited) {
            return;
        }
        // Limit the work for requests of this round separately, so that new requests cannot delay
        // them.
        let before = cx.sockets.counters.work;
        while cx.sockets.counters.work - before < WORK_A_TURN
            && let Some(asker) = self.rounds.now.pop_front()
        {
            self.answer_asker(cx, asker);
        }
        self.rounds.has_begun = !self.rounds.now.is_empty();
    }

    /// Queues a request until each of the `shards` (a bit set) has finished a round of requests.
    fn wait_for_rounds(&mut self, cx: &mut RequestCx<'_>, asker: Asker, shards: u16) {
        let place = cx.sockets.place;
        if shards & !place.own() == 0 {
            return self.rounds.next.push_back(asker);
        }
        let number = self.wait_for(shards, Then::Ask(asker));
        for shard in place.shards_of(shards & !place.own()) {
            cx.net.tell_shard(shard, PeerMessage::AskRound(number));
        }
        if shards & place.own() != 0 {
            self.rounds.next.push_back(Asker::Shard(place.id(), number));
        }
    }

    /// Registers a wait for the shards in `left`, a bit set. Returns its number.
    fn wait_for(&mut self, left: u16, then: Then) -> u64 {
        let number = self.rounds.count;
        self.rounds.count += 1;
        self.rounds.waiting.insert(number, RoundWait { left, then });
        number
    }

    /// Records that the shard `from` has finished its round for the request with this number.
    pub(crate) fn note_done(&mut self, from: ShardId, number: u64) {
        let Some(waiting) = self.rounds.waiting.get_mut(&number) else { return };
        waiting.left &= !(1 << from.0);
        if waiting.left == 0 {
            let done = self.rounds.waiting.remove(&number);
            self.rounds.ready.extend(done.map(|waiting| waiting.then));
        }
    }

    fn continue_after(&mut self, cx: &mut RequestCx<'_>, then: Then) {
        match then {
            Then::Ask(asker) => self.answer_asker(cx, asker),
            Then::Give(id, serial, answer) => {
                let attached = cx.processes.channels.get(id);
                if attached.is_some_and(|it| it.serial == serial && !it.has_ended) {
                    cx.processes.channels.answer(id, *answer);
                }
            }
        }
    }

    /// Answers a request of a process after the shards in `others` (a bit set) have handled earlier
    /// messages.
    fn answer_after(&mut self, cx: &mut RequestCx<'_>, id: ChannelId, answer: Answer, others: u16) {
        let Some(serial) = cx.processes.channels.get(id).map(|attached| attached.serial) else {
            return;
        };
        let number = self.wait_for(others, Then::Give(id, serial, Box::new(answer)));
        for shard in cx.sockets.place.shards_of(others) {
            cx.net.tell_shard(shard, PeerMessage::Echo(number));
        }
    }

    fn answer_asker(&mut self, cx: &mut RequestCx<'_>, asker: Asker) {
        match asker {
            Asker::Job(job) => {
                cx.sockets.counters.work(STACK_TURN);
                self.jobs.push_back(job);
            }
            Asker::Shard(shard, number) if shard == cx.sockets.place.id() => {
                self.note_done(shard, number);
            }
            Asker::Shard(shard, number) => cx.net.tell_shard(shard, PeerMessage::Done(number)),
            Asker::Process(id, serial) => {
                // Compare serial numbers, because the channel ID may have been reused for another
                // process.
                let attached = cx.processes.channels.get_mut(id);
                let Some(attached) = attached.filter(|it| it.serial == serial) else { return };
                let request = attached.asks.request.take();
                if let Some(request) = request.filter(|_| !attached.has_ended) {
                    cx.sockets.counters.work(1);
                    match request.call {
                        call::OUTSIDE => self.pass_on(cx, id, request),
                        _ => {
                            let answer = self.handle(cx, id, &request);
                            self.answer_visibly(cx, id, &request, answer);
                        }
                    }
                }
            }
            Asker::Want(id, serial) => {
                let attached = cx.processes.channels.get_mut(id);
                let Some(attached) = attached.filter(|it| it.serial == serial) else { return };
                if let Some(want) = attached.asks.want.take() {
                    cx.processes.grant(cx.sockets, cx.net, id, *want);
                }
            }
        }
    }

    /// Reads a request and answers it, unless it must wait for earlier work or is for the registry
    /// (process manager). The request may have been written after the descriptors were polled.
    fn read_request(&mut self, cx: &mut RequestCx<'_>, id: ChannelId) {
        cx.sockets.counters.work(1);
        let Some(attached) = cx.processes.channels.get_mut(id) else { return };
        attached.asks.is_heard = false;
        if !attached.has_request() {
            return;
        }
        let asked = attached.link.as_mut().and_then(|link| link.ring.take_request());
        let Some(request) = asked else { return };
        attached.asks.asked += 1;
        cx.sockets.counters.requests += 1;
        cx.sockets.counters.work(REQUEST);
        // Handle all commands that the process wrote before the request, which are visible in the
        // ring by now.
        let has_more = self.drain_share(cx, id);
        match request.call {
            number if goes_by_socket(number) => {
                return cx.processes.channels.answer(id, Err(Errno(EPROTO)));
            }
            call::OUTSIDE if !has_more => return self.pass_on(cx, id, request),
            _ => {}
        }
        let own = u16::from(has_more) << cx.sockets.place.number;
        let shards = own | cx.sockets.depends_on_shards(cx.net, id, &request);
        if shards != 0 {
            return self.wait_for_others(cx, id, request, shards);
        }
        let answer = self.handle(cx, id, &request);
        if wants(&request) && answer.as_ref().is_err_and(is_want) {
            self.wait_for_others(cx, id, request, cx.sockets.place.all());
        } else {
            self.answer_visibly(cx, id, &request, answer);
        }
    }

    fn wait_for_others(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: ChannelId,
        request: Box<Request>,
        shards: u16,
    ) {
        if let Some(attached) = cx.processes.channels.get_mut(id) {
            attached.asks.request = Some(request);
            let asker = Asker::Process(id, attached.serial);
            self.wait_for_rounds(cx, asker, shards);
        }
    }

    /// Answers a request. On Linux, a connect over loopback returns only after the connection is in
    /// the accept queue. So if the listener is in a peer shard, waits for that shard first.
    fn answer_visibly(
        &mut self,
        cx: &mut RequestCx<'_>,
        id: ChannelId,
        request: &Request,
        answer: Answer,
    ) {
        let others = match request.call {
            call::CONNECT if answer.is_ok() => {
                cx.sockets.listening_shards(cx.net, request) & !cx.sockets.place.own()
            }
            _ => 0,
        };
        match others {
            0 => cx.processes.channels.answer(id, answer),
            others => self.answer_after(cx, id, answer, others),
        }
    }

    /// Queues a request from a control socket until earlier commands of all processes are executed.
    /// CLONE is executed at once, because its [`Want::MayClone`] has already waited.
    pub(crate) fn note_want(&mut self, cx: &mut RequestCx<'_>, id: ChannelId, want: Box<Want>) {
        if matches!(*want, Want::Clone { .. } | Want::NoClone(_)) {
            return cx.processes.grant(cx.sockets, cx.net, id, *want);
        }
        let attached = cx.processes.channels.get_mut(id);
        match attached.filter(|it| !it.has_ended && it.asks.want.is_none() && it.batch.is_none()) {
            Some(attached) => {
                attached.asks.want = Some(want);
                self.rounds.next.push_back(Asker::Want(id, attached.serial));
            }
            None => cx.processes.notices.push(ShardReport::Refused(id, Errno(EPROTO), Some(want))),
        }
    }

    /// Forwards a request from a process's request slot to the registry (process manager).
    fn pass_on(&mut self, cx: &mut RequestCx<'_>, id: ChannelId, request: Box<Request>) {
        if let Some(attached) = cx.processes.channels.get(id) {
            cx.processes.notices.push(ShardReport::Asks(
                id,
                attached.asks.asked,
                attached.pid,
                request,
            ));
        }
    }
}

/// Returns whether a request failed because a resource, such as a port, was not available.
fn is_want(Errno(errno): &Errno) -> bool {
    matches!(*errno, EADDRINUSE | EADDRNOTAVAIL | EAGAIN | ENOBUFS)
}

/// Returns whether a request may fail for lack of a resource, such as a port, that another process
/// may have released.
fn wants(request: &Request) -> bool {
    matches!(
        request.call,
        call::SOCKET | call::BIND | call::LISTEN | call::CONNECT | call::SET_OPTION
    )
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::os::fd::OwnedFd;
    use std::sync::atomic::Ordering::{Relaxed, SeqCst};

    use rustix::net::{RecvFlags, SendFlags, recv, send};
    use towpath_ring::{Channel, push_command};
    use towpath_shm::control::ControlReply;
    use towpath_shm::layout::{Command, Plain, RawAddr, op, option_bit, setting};

    use super::*;
    use crate::shard::requests::commands::COMMANDS_A_TURN;
    use crate::{Engine, EngineConfig};

    const TCP: u32 = 6;
    const UDP: u32 = 17;
    const ECONNREFUSED: u32 = 111;

    fn engine() -> Engine {
        Engine::new(EngineConfig::default(), Vec::new(), [7; 32]).expect("memory")
    }

    /// Runs one iteration of the engine's event loop, as between two sleeps.
    fn turn(engine: &mut Engine) {
        engine.turn_and_look();
    }

    /// A program that uses a channel, simulated by the test.
    struct Program {
        id: ChannelId,
        control: OwnedFd,
        channel: Channel,
        /// Number of the program's last request in its request slot.
        asked: Cell<Option<u32>>,
        _bell: OwnedFd,
    }

    impl Program {
        fn new(engine: &mut Engine) -> Self {
            let (id, control) = engine.open_channel();
            let given = engine.link(id);
            let (channel, asked) = (given.channel, Cell::default());
            Self { id, control: control.into(), channel, asked, _bell: given.doorbell.into() }
        }

        fn ask(&self, request: &Request) {
            self.asked.set(Some(towpath_ring::ask(&self.channel, request)));
        }

        fn answer(&self) -> Option<ControlReply> {
            let reply = towpath_ring::answer_to(&self.channel, self.asked.get()?)?;
            self.asked.take();
            Some(reply)
        }

        fn ask_on_socket(&self, request: &Request) {
            send(&self.control, request.wire(), SendFlags::empty()).expect("the engine lives");
        }

        fn answer_on_socket(&self) -> Option<ControlReply> {
            let mut bytes = [0; size_of::<ControlReply>()];
            let (len, _) = recv(&self.control, &mut bytes, RecvFlags::DONTWAIT).ok()?;
            Some(ControlReply::from_bytes(&bytes[..len]))
        }

        fn answered(&self, engine: &mut Engine, request: &Request) -> ControlReply {
            self.ask(request);
            for _ in 0..100 {
                turn(engine);
                if let Some(reply) = self.answer() {
                    return reply;
                }
            }
            panic!("{request:?} is not answered");
        }

        fn socket(&self, engine: &mut Engine, protocol: u32) -> ControlReply {
            let request = Request { call: call::SOCKET, a: 2, b: protocol, ..Request::default() };
            self.answered(engine, &request)
        }

        /// Opens a socket and binds it to a free port. Returns the socket and the port.
        fn bound(&self, engine: &mut Engine, protocol: u32) -> (ControlReply, u16) {
            let socket = self.socket(engine, protocol);
            let reply = self.answered(engine, &bind(&socket, 0));
            (socket, reply.addr.to_socket_addr().expect("it has one").port())
        }

        fn listener(&self, engine: &mut Engine) -> (ControlReply, u16) {
            let (socket, port) = self.bound(engine, TCP);
            let reply = self.answered(engine, &about(call::LISTEN, &socket));
            assert_eq!(reply.errno, 0);
            (socket, port)
        }

        fn tell(&self, of: &ControlReply, op: u32, a: u32) {
            let ControlReply { slot, generation, .. } = *of;
            let command = Command { op, slot, generation, a, b: 0, c: 0 };
            push_command(&self.channel, &command).expect("it fits");
        }

        /// Writes more commands without effect than the engine reads in one iteration of its event
        /// loop.
        fn chatter(&self, of: &ControlReply) {
            (0..2 * COMMANDS_A_TURN + 9).for_each(|_| self.tell(of, op::SETTING, setting::NODELAY));
        }
    }

    fn about(number: u32, socket: &ControlReply) -> Request {
        let ControlReply { slot, generation, .. } = *socket;
        Request { call: number, slot, generation, ..Request::default() }
    }

    fn bind(socket: &ControlReply, port: u16) -> Request {
        let addr = RawAddr::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        Request { addr, ..about(call::BIND, socket) }
    }

    #[test]
    fn a_request_comes_after_what_its_process_said() {
        let mut engine = engine();
        let program = Program::new(&mut engine);
        let socket = program.socket(&mut engine, TCP);
        let id = program.id;
        let has_commands = |engine: &Engine| {
            let link =
                engine.shard.processes.channels.get(id).and_then(|attached| attached.link.as_ref());
            link.expect("it lives").ring.has_commands()
        };
        for _ in 0..3 {
            program.chatter(&socket);
            program.ask(&Request { call: call::INTERFACES, ..Request::default() });
            while program.answer().is_none() {
                turn(&mut engine);
            }
            assert!(!has_commands(&engine));
        }
    }

    /// Tests that requests whose reply contains descriptors are accepted only on the control
    /// socket, and all others only in the request slot.
    #[test]
    fn each_request_has_one_way() {
        let mut engine = engine();
        let program = Program::new(&mut engine);
        program.ask_on_socket(&Request { call: call::INTERFACES, ..Request::default() });
        (0..4).for_each(|_| turn(&mut engine));
        assert_eq!(program.answer_on_socket().map(|reply| reply.errno), Some(EPROTO));
        for number in [call::HELLO, call::REGION, call::CLONE, call::TOKENS] {
            let request = Request { call: number, ..Request::default() };
            assert_eq!(program.answered(&mut engine, &request).errno, EPROTO);
        }
        assert!(program.answer_on_socket().is_none());
    }

    /// A second request, written before the reply to the first one is read, is read after the first
    /// is answered.
    #[test]
    fn a_request_in_the_cell_is_taken_when_the_one_before_is_answered() {
        let mut engine = engine();
        let program = Program::new(&mut engine);
        let list = Request { call: call::SOCKETS, ..Request::default() };
        program.ask(&list);
        engine.shard.do_turn();
        assert!(program.answer().is_none(), "it waits for a round");
        let interfaces = Request { call: call::INTERFACES, ..Request::default() };
        program.ask(&interfaces);
        engine.shard.do_turn();
        assert!(program.answer().is_none() && engine.shard.sockets.counters.requests == 1);
        (0..4).for_each(|_| turn(&mut engine));
        let addresses_of_loopback = program.answer().map(|reply| reply.a);
        assert_eq!((addresses_of_loopback, engine.shard.sockets.counters.requests), (Some(2), 2));
    }

    /// Tests that a request in shared memory and a request on the control socket do not delay each
    /// other.
    #[test]
    fn each_way_has_a_request_at_a_time() {
        let mut engine = engine();
        let program = Program::new(&mut engine);
        let list = Request { call: call::SOCKETS, ..Request::default() };
        program.ask(&list);
        engine.shard.do_turn();
        program.ask_on_socket(&Request { call: call::CLONE, ..Request::default() });
        (0..4).for_each(|_| turn(&mut engine));
        assert!(program.answer_on_socket().is_some() && program.answer().is_some());
    }

    /// Tests that threads that wait for a reply wake up if their process is removed for a protocol
    /// violation.
    #[test]
    fn who_is_cut_off_waits_for_no_answer() {
        let mut engine = engine();
        let program = Program::new(&mut engine);
        let (word, expected) = towpath_ring::await_answer(&program.channel);
        program.ask(&Request { call: call::SOCKETS, ..Request::default() });
        engine.shard.do_turn();
        engine.shard.detach(engine.shard.sockets.now, program.id);
        assert_ne!(word.load(SeqCst), expected);
        assert!(towpath_ring::has_ended(&program.channel));
        (0..9).for_each(|_| turn(&mut engine));
        assert!(program.answer().is_none());
    }

    /// Tests that the sockets of an ended process are closed before a later request is answered. A
    /// busy engine rarely polls the control socket, whose hang-up shows the end.
    #[test]
    fn a_process_that_ended_before_holds_nothing() {
        let mut engine = engine();
        let (ends, asks) = (Program::new(&mut engine), Program::new(&mut engine));
        let (_, port) = ends.listener(&mut engine);
        let socket = asks.socket(&mut engine, TCP);
        drop(ends);
        asks.ask(&bind(&socket, port));
        engine.shard.do_turn();
        assert_eq!(asks.answer().map(|reply| reply.errno), None, "it has not looked");
        for _ in 0..9 {
            turn(&mut engine);
        }
        assert_eq!(asks.answer().map(|reply| reply.errno), Some(0));
    }

    /// Tests that requests which are answered at once do not delay requests that wait for earlier
    /// work.
    #[test]
    fn a_round_ends_beside_any_number_of_requests() {
        let mut engine = engine();
        let many: Vec<_> = (0..100).map(|_| Program::new(&mut engine)).collect();
        let asks = Program::new(&mut engine);
        let question = Request { call: call::INTERFACES, ..Request::default() };
        asks.ask(&Request { call: call::SOCKETS, ..Request::default() });
        for _ in 0..10 {
            many.iter().for_each(|program| {
                while program.answer().is_some() {}
                program.ask(&question);
            });
            turn(&mut engine);
        }
        assert!(asks.answer().is_some());
    }

    #[test]
    fn a_listener_that_was_closed_before_takes_no_connection() {
        for near in [[127, 0, 0, 1], [0, 0, 0, 0]] {
            let mut engine = engine();
            let (server, client) = (Program::new(&mut engine), Program::new(&mut engine));
            let (listener, port) = server.listener(&mut engine);
            let socket = client.socket(&mut engine, TCP);
            server.chatter(&listener);
            server.tell(&listener, op::CLOSE, 0);
            let addr = RawAddr::new(SocketAddr::from((near, port)));
            let connect = Request { addr, ..about(call::CONNECT, &socket) };
            assert_eq!(client.answered(&mut engine, &connect).errno, 0);
            turn(&mut engine);
            let error = engine.shard.sockets.slots.shared(socket.slot).error.load(SeqCst);
            assert_eq!(error as u32, ECONNREFUSED, "{near:?}");
        }
    }

    #[test]
    fn a_port_that_was_shared_and_is_so_no_more_is_taken() {
        let mut engine = engine();
        let (one, other) = (Program::new(&mut engine), Program::new(&mut engine));
        let share = |engine: &Engine, socket: &ControlReply, yes: bool| {
            let bits = &engine.shard.sockets.slots.shared(socket.slot).option_bits;
            bits.store(if yes { option_bit::REUSEADDR } else { 0 }, Relaxed);
        };
        let first = one.socket(&mut engine, UDP);
        share(&engine, &first, true);
        let reply = one.answered(&mut engine, &bind(&first, 0));
        let port = reply.addr.to_socket_addr().expect("it has one").port();
        let second = other.socket(&mut engine, UDP);
        share(&engine, &second, true);
        one.chatter(&first);
        share(&engine, &first, false);
        one.tell(&first, op::SETTING, setting::REUSEADDR);
        assert_eq!(other.answered(&mut engine, &bind(&second, port)).errno, EADDRINUSE);
    }

    /// Tests a program that moves the write position of its command ring back. Requests of other
    /// processes must not wait for the withdrawn commands, which never arrive.
    #[test]
    fn commands_that_are_taken_back_hold_up_nobody() {
        let mut engine = engine();
        let (hostile, asks) = (Program::new(&mut engine), Program::new(&mut engine));
        let socket = hostile.socket(&mut engine, TCP);
        asks.ask(&Request { call: call::SOCKETS, ..Request::default() });
        hostile.chatter(&socket);
        turn(&mut engine);
        assert!(asks.answer().is_none(), "it comes after what others have said");
        let header = hostile.channel.header();
        header.command_tail.store(header.command_head.load(SeqCst), SeqCst);
        (0..9).for_each(|_| turn(&mut engine));
        assert!(asks.answer().is_some());
    }
}
