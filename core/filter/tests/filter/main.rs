//! Tests access lists as users see them: grammar, and judgements compared with a linear search.

mod chance;
mod counting;
mod grammar;
mod judgements;
