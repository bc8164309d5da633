//! Answers RTM_GETRULE with the default policy routing rules of a kernel. The stack has no other
//! rules.

use super::out::{AnswerBuffer, Outcome};
use crate::Result;

/// Default policy routing rules: priority and routing table of each.
const RULES: [(u32, u8); 3] =
    [(0, libc::RT_TABLE_LOCAL), (32766, libc::RT_TABLE_MAIN), (32767, libc::RT_TABLE_DEFAULT)];

/// Answers RTM_GETRULE with all rules, or with those of the requested family. IPv6 has no table
/// `default`.
pub(super) fn all(out: &mut AnswerBuffer<'_>) -> Result<Outcome> {
    let wanted = out.family();
    for family in [libc::AF_INET, libc::AF_INET6] {
        if wanted.is_some_and(|wanted| wanted != family) {
            continue;
        }
        let count = if family == libc::AF_INET { 3 } else { 2 };
        for (priority, table) in &RULES[..count] {
            out.begin(libc::RTM_NEWRULE)?;
            let to = &mut out.datagram;
            // Write struct fib_rule_hdr: family, lengths of the addresses, TOS, table, two reserved
            // bytes, action, flags.
            to.put(&[family as u8, 0, 0, 0, *table, 0, 0, FR_ACT_TO_TBL]);
            to.put(&[0; 4]);
            to.number(FRA_TABLE, u32::from(*table));
            to.number(FRA_SUPPRESS_PREFIXLEN, u32::MAX);
            to.attribute(FRA_PROTOCOL, &[libc::RTPROT_KERNEL]);
            if *priority > 0 {
                to.number(FRA_PRIORITY, *priority);
            }
            to.end();
        }
    }
    Ok(Ok(()))
}

// Constants from linux/fib_rules.h.
const FR_ACT_TO_TBL: u8 = 1;
const FRA_PRIORITY: u16 = 6;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_PROTOCOL: u16 = 21;
