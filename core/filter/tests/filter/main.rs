//! Access lists as their users see them: the grammar, and judgements beside a linear search.

mod chance;
mod counting;
mod grammar;
mod judgements;
