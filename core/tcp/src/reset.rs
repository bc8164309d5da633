//! Creates the RST that answers a segment which belongs to no connection.

use crate::segment::{Outgoing, Segment};
use towpath_wire::tcp::{Flags, SeqNum};

/// Returns the RST for a segment without a matching connection, listener or TIME-WAIT; `None` if
/// the segment is a RST itself.
///
//= https://www.rfc-editor.org/rfc/rfc9293#section-3.10.7.1
//# An incoming segment containing a RST is discarded.  An incoming segment not containing a RST
//# causes a RST to be sent in response.
pub fn reset_for(segment: &Segment) -> Option<Outgoing> {
    if segment.flags.contains(Flags::RST) {
        return None;
    }
    Some(if segment.flags.contains(Flags::ACK) {
        Outgoing::bare(segment.ack, SeqNum(0), Flags::RST, 0)
    } else {
        let ack = segment.seq + segment.seq_len();
        Outgoing::bare(SeqNum(0), ack, Flags::RST | Flags::ACK, 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;
    use towpath_wire::tcp::Options;

    fn segment(flags: Flags) -> Segment {
        Segment {
            seq: SeqNum(100),
            ack: SeqNum(7),
            flags,
            window: 0,
            urgent: 0,
            options: Options::default(),
            payload_len: 10,
            arrival: Instant(0),
            ecn: towpath_wire::Ecn::NotEct,
            segments: 1,
        }
    }

    #[test]
    fn takes_its_numbers_from_the_segment() {
        assert_eq!(reset_for(&segment(Flags::RST)), None);
        let to_ack = reset_for(&segment(Flags::ACK)).unwrap();
        assert_eq!((to_ack.seq, to_ack.flags), (SeqNum(7), Flags::RST));
        let to_syn = reset_for(&segment(Flags::SYN)).unwrap();
        assert_eq!(
            (to_syn.seq, to_syn.ack, to_syn.flags),
            (SeqNum(0), SeqNum(111), Flags::RST | Flags::ACK)
        );
    }
}
