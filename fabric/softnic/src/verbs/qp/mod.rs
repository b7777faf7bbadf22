//! Connected queue pairs (RC, UC) as their owner holds them.

mod handle;
mod modify;
#[cfg(test)]
mod tests;

pub(crate) use handle::{Qp, checked_cap};
