//! Cache of answers by question, with limits on the number of answers and of bytes.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use towpath_tcp::Instant;

use crate::answer::{UpstreamAnswer, change_ttls, valid_ttl};
use crate::config::ForwarderConfig;
use crate::query::AskedQuestion;
use crate::reply::AnswerParts;

/// Bytes of memory for each answer besides its message and its key: two entries of maps, and the
/// allocations behind them.
const ENTRY_BYTES: usize = 160;

/// Key of a question: its section in lower case, and the header bits that change the answer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CacheKey(Arc<[u8]>);

impl CacheKey {
    /// Returns the key of a question.
    pub fn of(question: &AskedQuestion) -> Self {
        let AskedQuestion { section, dnssec_ok, wants_ad, no_checks } = question;
        let bits = u8::from(*dnssec_ok) | u8::from(*wants_ad) << 1 | u8::from(*no_checks) << 2;
        let split = question.name().len();
        let lower = section[..split].iter().map(u8::to_ascii_lowercase);
        Self(lower.chain(section[split..].iter().copied()).chain([bits]).collect())
    }

    /// Returns the length in bytes of the question section.
    fn question_len(&self) -> usize {
        self.0.len() - 1
    }
}

/// An answer in the cache.
#[derive(Debug)]
struct CachedAnswer {
    message: Box<[u8]>,
    code: u16,
    stored_at: Instant,
    expires_at: Instant,
    /// Number of the latest use, which is the key in the order of eviction.
    used: u64,
}

/// Cache of answers. The least recently used answers are evicted.
#[derive(Debug)]
pub struct AnswerCache {
    entries: BTreeMap<CacheKey, CachedAnswer>,
    /// Keys of all answers, the least recently used one first.
    order: BTreeMap<u64, CacheKey>,
    uses: u64,
    bytes: usize,
    evicted: u64,
    entries_max: usize,
    bytes_max: usize,
    ttl_min_s: u32,
    ttl_max_s: u32,
}

/// Size of a cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheSize {
    /// Number of answers, including expired ones that were not removed yet.
    pub entries: usize,
    /// Number of bytes of these answers and their keys.
    pub bytes: usize,
    /// Number of answers that were evicted for other answers.
    pub evicted: u64,
}

impl AnswerCache {
    /// Creates an empty cache with the limits of `config`.
    pub fn new(config: &ForwarderConfig) -> Self {
        Self {
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
            uses: 0,
            bytes: 0,
            evicted: 0,
            entries_max: config.cache_entries,
            bytes_max: config.cache_bytes,
            ttl_min_s: config.ttl_min_s,
            ttl_max_s: config.ttl_max_s,
        }
    }

    /// Returns the answer to a question, unless it has expired.
    pub fn find(&mut self, now: Instant, key: &CacheKey) -> Option<AnswerParts<'_>> {
        if self.entries.get(key).is_some_and(|entry| entry.expires_at <= now) {
            self.remove(key);
        }
        let entry = self.entries.get_mut(key)?;
        self.uses += 1;
        let place = self.order.remove(&entry.used)?;
        entry.used = self.uses;
        self.order.insert(self.uses, place);
        let age_s = u32::try_from(now.since(entry.stored_at).as_secs()).unwrap_or(u32::MAX);
        Some(AnswerParts { message: &entry.message, code: entry.code, age_s })
    }

    /// Stores an answer, if it may be cached. Its times to live are raised and lowered to the
    /// limits of the configuration.
    pub fn insert(&mut self, now: Instant, key: &CacheKey, answer: &UpstreamAnswer) {
        let Some(ttl_s) = answer.ttl_s else { return };
        let mut message = answer.message.clone().into_boxed_slice();
        let limit = |ttl: u32| ttl.max(self.ttl_min_s).min(self.ttl_max_s);
        change_ttls(&mut message, key.question_len(), |ttl| limit(valid_ttl(ttl)));
        self.store(now, key, message, answer.code, limit(ttl_s));
    }

    /// Remembers that a question cannot be answered now (RFC 9520 §3.2).
    pub fn insert_failure(&mut self, now: Instant, key: &CacheKey, code: u16, ttl_s: u32) {
        self.store(now, key, Box::default(), code, ttl_s);
    }

    fn store(&mut self, now: Instant, key: &CacheKey, message: Box<[u8]>, code: u16, ttl_s: u32) {
        self.remove(key);
        let size = size_of_entry(key, &message);
        if size > self.bytes_max || self.entries_max == 0 || ttl_s == 0 {
            return;
        }
        while self.entries.len() >= self.entries_max || self.bytes + size > self.bytes_max {
            let Some((_, oldest)) = self.order.first_key_value() else { return };
            let oldest = oldest.clone();
            self.remove(&oldest);
            self.evicted += 1;
        }
        self.uses += 1;
        let expires_at = now + Duration::from_secs(ttl_s.into());
        let entry = CachedAnswer { message, code, stored_at: now, expires_at, used: self.uses };
        self.bytes += size;
        self.order.insert(self.uses, key.clone());
        self.entries.insert(key.clone(), entry);
    }

    fn remove(&mut self, key: &CacheKey) {
        let Some(entry) = self.entries.remove(key) else { return };
        self.order.remove(&entry.used);
        self.bytes -= size_of_entry(key, &entry.message);
    }

    /// Removes all answers, and returns their number.
    pub fn flush(&mut self) -> usize {
        let count = self.entries.len();
        self.entries.clear();
        self.order.clear();
        self.bytes = 0;
        count
    }

    /// Returns the size of the cache.
    pub fn size(&self) -> CacheSize {
        CacheSize { entries: self.entries.len(), bytes: self.bytes, evicted: self.evicted }
    }
}

fn size_of_entry(key: &CacheKey, message: &[u8]) -> usize {
    ENTRY_BYTES + key.0.len() + message.len()
}
