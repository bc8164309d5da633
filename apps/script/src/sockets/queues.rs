//! Error queue of a socket, which contains the completions of sends without copying.

use std::collections::VecDeque;

use crate::syntax::symbols as sys;
use crate::syntax::value::Value;

/// Sends with MSG_ZEROCOPY that are not completed, in the order of the calls.
#[derive(Debug, Default)]
pub struct ZeroCopies {
    /// Number of the next send with MSG_ZEROCOPY.
    next: i64,
    /// Sends whose completion was not read yet. Each element contains the number of the send, and
    /// the stream position of the end of its bytes.
    waiting: VecDeque<(i64, u64)>,
}

impl ZeroCopies {
    /// Records a send whose bytes end before position `end` of the stream.
    pub fn begin(&mut self, end: u64) {
        self.waiting.push_back((self.next, end));
        self.next += 1;
    }

    pub fn is_ready(&self, acknowledged: u64) -> bool {
        self.waiting.front().is_some_and(|(_, end)| *end <= acknowledged)
    }

    /// Takes the completions of all acknowledged sends. Returns them as a single range, because
    /// Linux merges them. `None` if there are none.
    pub fn take(&mut self, acknowledged: u64) -> Option<Value> {
        let first = self.waiting.front().filter(|(_, end)| *end <= acknowledged)?.0;
        let mut last = first;
        while let Some((number, end)) = self.waiting.front()
            && *end <= acknowledged
        {
            last = *number;
            self.waiting.pop_front();
        }
        let fields = |fields: &[(&str, Value)]| {
            let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            Value::Struct(fields.collect())
        };
        let data = fields(&[
            ("ee_errno", Value::Int(0)),
            ("ee_origin", Value::Int(sys::SO_EE_ORIGIN_ZEROCOPY)),
            ("ee_type", Value::Int(0)),
            ("ee_code", Value::Int(sys::SO_EE_CODE_ZEROCOPY_COPIED)),
            ("ee_info", Value::Int(first)),
            ("ee_data", Value::Int(last)),
        ]);
        let message =
            fields(&[("cmsg_level", Value::Any), ("cmsg_type", Value::Any), ("cmsg_data", data)]);
        Some(fields(&[
            ("msg_name", Value::Any),
            ("msg_iov", Value::Any),
            ("msg_flags", Value::Int(sys::MSG_ERRQUEUE)),
            ("msg_control", Value::List(vec![message])),
        ]))
    }
}
