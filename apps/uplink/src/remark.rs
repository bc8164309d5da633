//! Remarks about a link, for the user.

use std::sync::Arc;

/// A remark for the user about a link. No call waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remark {
    /// The link works, but not as the user may expect, with the sentence that says why.
    Warning(String),
    /// The device was removed: "the TAP device tw0", or "the interface veth1".
    DeviceGone(String),
}

/// A function that takes remarks, on any thread.
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
