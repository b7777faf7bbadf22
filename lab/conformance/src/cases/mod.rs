//! The cases, by topic.

mod access;
mod atomics;
mod crowd;
mod data;
mod elements;
mod events;
mod flush;
mod inline;
mod lives;
mod local;
mod memory;
mod notify;
mod order;
mod queues;
mod retry;
mod signals;
mod srq;
mod states;
mod uc;
mod ud;

use crate::case::{Case, Table};

/// Returns every case, in a stable order.
pub fn all() -> Vec<Case> {
    let mut table = Table::default();
    data::add(&mut table);
    inline::add(&mut table);
    elements::add(&mut table);
    signals::add(&mut table);
    order::add(&mut table);
    access::add(&mut table);
    local::add(&mut table);
    atomics::add(&mut table);
    states::add(&mut table);
    flush::add(&mut table);
    retry::add(&mut table);
    notify::add(&mut table);
    queues::add(&mut table);
    events::add(&mut table);
    lives::add(&mut table);
    uc::add(&mut table);
    ud::add(&mut table);
    srq::add(&mut table);
    memory::add(&mut table);
    crowd::add(&mut table);
    table.0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_well_formed() {
        let mut seen = BTreeSet::new();
        for case in super::all() {
            assert!(
                case.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "/-".contains(c)),
                "{}",
                case.name
            );
            assert!(!case.source.is_empty(), "{} has no source", case.name);
            assert!(seen.insert(case.name.clone()), "{} is there twice", case.name);
        }
    }
}
