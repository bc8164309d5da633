//! Remarks to the user about a link.

use std::sync::Arc;

/// A remark about a link that is shown to the user. No answer is expected.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remark {
    /// The link works, but not as the user may expect. Contains the message.
    Warning(String),
    /// The state of the device has changed while the stack runs. Contains the message. The listener
    /// is called on the stack's thread, and must not wait.
    Changed(String),
    /// The device was removed. Contains its name for the message, such as "the TAP device tw0".
    DeviceGone(String),
}

/// Callback for remarks, which may be called on any thread.
#[derive(Clone)]
pub struct Tell(Arc<dyn Fn(Remark) + Send + Sync>);

impl Tell {
    /// Creates a `Tell` that calls `listener` with remarks.
    pub fn new(listener: impl Fn(Remark) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }

    /// Creates a `Tell` that ignores remarks.
    pub fn ignore() -> Self {
        Self::new(|_| {})
    }

    pub(crate) fn remark(&self, remark: Remark) {
        (self.0)(remark);
    }
}

impl std::fmt::Debug for Tell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tell").finish_non_exhaustive()
    }
}
