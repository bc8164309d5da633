use super::*;
use crate::time::Instant;
use towpath_wire::tcp::Options;

fn segment(flags: Flags, payload_len: u32, ecn: Ecn) -> Segment {
    Segment {
        seq: SeqNum(1),
        ack: SeqNum(1),
        flags: Flags::ACK | flags,
        window: 0,
        urgent: 0,
        options: Options::default(),
        payload_len,
        arrival: Instant(1),
        ecn,
        segments: 1,
    }
}

fn ace(value: u8) -> Segment {
    segment(Flags::from_ace(value), 0, Ecn::NotEct)
}

#[test]
fn modes_have_names_and_the_numbers_of_linux() {
    for mode in EcnMode::ALL {
        assert_eq!(EcnMode::from_word(mode.name()), Some(*mode));
    }
    assert_eq!(EcnMode::from_word("2"), Some(EcnMode::default()));
    for word in ["", "4", "6", "On"] {
        assert_eq!(EcnMode::from_word(word), None, "{word:?}");
    }
}

#[test]
fn client_of_accurate_ecn_follows_table_2() {
    for (ace, expected, may_send) in [
        (0b000, EcnState::NONE, false),
        (0b001, EcnState::CLASSIC, true),
        (0b010, EcnState::ACCURATE, true),
        (0b011, EcnState::ACCURATE, false),
        (0b100, EcnState::ACCURATE, false),
        (0b101, EcnState::ACCURATE, true),
        (0b110, EcnState::ACCURATE, false),
        (0b111, EcnState::NONE, false),
    ] {
        let mut state = EcnState::offer(EcnMode::Accurate);
        state.on_syn_ack(Flags::SYN | Flags::ACK | Flags::from_ace(ace));
        assert_eq!(state.feedback(), expected.feedback(), "{ace:03b}");
        assert_eq!(state.codepoint() == Ecn::Ect0, may_send, "{ace:03b}");
        // A client of classic ECN only knows ECE.
        let mut state = EcnState::offer(EcnMode::On);
        state.on_syn_ack(Flags::SYN | Flags::ACK | Flags::from_ace(ace));
        let is_classic = state.feedback() == Feedback::Classic;
        assert_eq!(is_classic, ace & 0b011 == 0b001, "{ace:03b}");
    }
}

#[test]
fn server_reports_the_codepoint_of_the_syn() {
    for (ecn, expected) in
        [(Ecn::NotEct, 0b010), (Ecn::Ect1, 0b011), (Ecn::Ect0, 0b100), (Ecn::Ce, 0b110)]
    {
        let mut state = EcnState::answer(EcnMode::Accurate, Flags::SYN | Flags::ACE);
        assert_eq!(state.syn_ack_flags(0, ecn).ace(), expected);
        // After two timeouts the path may drop SYN-ACKs with these flags.
        assert_eq!(state.syn_ack_flags(2, ecn), Flags::NONE);
        assert_eq!(state.codepoint(), Ecn::NotEct);
    }
}

#[test]
fn server_of_accurate_ecn_refuses_a_second_kind_of_request() {
    let mut state = EcnState::answer(EcnMode::Accurate, Flags::SYN | Flags::ACE);
    assert!(state.on_syn_again(Flags::SYN | Flags::ACE));
    assert!(!state.on_syn_again(Flags::SYN | Flags::ECE | Flags::CWR));
    assert_eq!(state.codepoint(), Ecn::Ect0);
    assert!(state.on_syn_again(Flags::SYN));
    assert_eq!((state.feedback(), state.codepoint()), (Feedback::Accurate, Ecn::NotEct));
}

#[test]
fn server_of_classic_ecn_refuses_accurate_requests_unless_it_lacks_accurate_ecn() {
    for (mode, is_refused) in [(EcnMode::Accurate, true), (EcnMode::Accept, false)] {
        let mut state = EcnState::answer(mode, Flags::SYN | Flags::ECE | Flags::CWR);
        assert_eq!(state.feedback(), Feedback::Classic);
        assert!(state.on_syn_again(Flags::SYN | Flags::ECE | Flags::CWR), "{mode:?}");
        assert_eq!(!state.on_syn_again(Flags::SYN | Flags::ACE), is_refused, "{mode:?}");
        assert!(state.on_syn_again(Flags::SYN));
        assert_eq!(state.feedback(), Feedback::None);
    }
}

#[test]
fn cleared_report_disables_ect_and_feedback() {
    let mut state = EcnState::ACCURATE;
    state.on_handshake_ack(&ace(0));
    assert_eq!(state.codepoint(), Ecn::NotEct);
    let counts = EcnCounts::default();
    assert_eq!(state.on_feedback(&ace(7), 1, &counts), 0);
    // We still count what we receive.
    let counts = EcnCounts { received: 1, ..counts };
    assert_eq!(state.feedback_flags(false, &counts).ace(), 6);
}

#[test]
fn counter_wraps_only_while_marks_arrive() {
    let mut state = EcnState::ACCURATE;
    let counts = EcnCounts { delivered: 6, ..EcnCounts::default() };
    // 5 + 6 = 11, in three bits 3.
    assert_eq!(state.on_feedback(&ace(3), 44, &counts), 0);
    assert_eq!(state.on_feedback(&ace(4), 2, &counts), 1);
    assert_eq!(state.on_feedback(&ace(2), 2, &counts), 7);
    // With 20 packets, 1, 9 or 17 of them were marked.
    assert_eq!(state.on_feedback(&ace(4), 20, &counts), 17);
    state.on_reduced();
    assert_eq!(state.on_feedback(&ace(3), 20, &counts), 16);
}

#[test]
fn marks_trigger_acknowledgements() {
    let mut state = EcnState::ACCURATE;
    let mut receive = |len, ecn, received, reported| {
        let counts = EcnCounts { received, reported, ..EcnCounts::default() };
        state.on_received(&segment(Flags::NONE, len, ecn), false, &counts)
    };
    assert!(!receive(1000, Ecn::Ect0, 0, 0));
    assert!(receive(1000, Ecn::Ce, 1, 0), "the first mark");
    assert!(!receive(1000, Ecn::Ce, 2, 1));
    assert!(receive(1000, Ecn::Ce, 3, 1), "the second mark since the last ACK");
    // Marked ACKs are acknowledged, too, but fewer of them.
    assert!(!receive(0, Ecn::Ce, 5, 3));
    assert!(receive(0, Ecn::Ce, 6, 3));
}

#[test]
fn echo_ends_with_cwr_unless_that_packet_is_marked() {
    let mut state = EcnState::CLASSIC;
    let counts = EcnCounts::default();
    let receive = |state: &mut EcnState, flags, ecn| {
        state.on_received(&segment(flags, 1000, ecn), false, &counts);
        state.feedback_flags(true, &counts)
    };
    assert_eq!(receive(&mut state, Flags::NONE, Ecn::Ect0), Flags::NONE);
    assert_eq!(receive(&mut state, Flags::NONE, Ecn::Ce), Flags::ECE);
    assert_eq!(receive(&mut state, Flags::NONE, Ecn::Ect0), Flags::ECE);
    assert_eq!(receive(&mut state, Flags::CWR, Ecn::Ce), Flags::ECE);
    assert_eq!(receive(&mut state, Flags::CWR, Ecn::Ect0), Flags::NONE);
    assert!(state.is_seen());
}

#[test]
fn each_change_of_the_feedback_is_reported() {
    let mut former = FormerAcks::default();
    (1..=3).for_each(|n| former.push(SeqNum(n)));
    assert_eq!(former.take(), Some((SeqNum(1), true)));
    assert_eq!(former.take(), Some((SeqNum(2), false)));
    // Two changes at the same byte cancel each other.
    former.push(SeqNum(3));
    assert_eq!(former.take(), None);
    (1..=5).for_each(|n| former.push(SeqNum(n)));
    assert_eq!((former.len(), former.take()), (3, Some((SeqNum(1), true))));
}
