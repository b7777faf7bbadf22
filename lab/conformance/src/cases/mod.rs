//! The cases, by topic.

mod access;
mod atomics;
mod data;
mod elements;
mod events;
mod flush;
mod inline;
mod lifetimes;
mod local;
mod many_pairs;
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
    let topics = [
        data::add,
        inline::add,
        elements::add,
        signals::add,
        order::add,
        access::add,
        local::add,
        atomics::add,
        states::add,
        flush::add,
        retry::add,
        notify::add,
        queues::add,
        events::add,
        lifetimes::add,
        uc::add,
        ud::add,
        srq::add,
        memory::add,
        many_pairs::add,
    ];
    topics.into_iter().for_each(|add| add(&mut table));
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
