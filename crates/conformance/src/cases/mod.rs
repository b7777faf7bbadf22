//! The cases, by what they are about.

mod data;

use crate::case::{Case, Table};

/// Every case, in a stable order.
pub fn all() -> Vec<Case> {
    let mut table = Table::default();
    data::add(&mut table);
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
