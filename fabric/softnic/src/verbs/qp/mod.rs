//! Connected queue pairs (RC, UC): the program's handles.

mod handle;
mod modify;
#[cfg(test)]
mod tests;

pub(crate) use handle::{Qp, checked_cap};
