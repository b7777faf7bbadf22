//! Unreliable connections with a peer on another host. Each test runs in a namespace of its own.

use crate::support::apart::is_apart;
use crate::support::unreliable::end_in_operation_errors;
use crate::support::*;
use farcall_verbs::{QpCap, QpType};

#[test]
fn ends_reads_and_atomics_over_roce_uc_in_an_operation_error() {
    if !is_apart("ends_reads_and_atomics_over_roce_uc_in_an_operation_error", "roce") {
        return;
    }
    let [mut a, mut b] = [(); 2].map(|()| End::of(QpType::Uc, QpCap::default()));
    join(&mut a, &mut b, End::rts);
    end_in_operation_errors(&mut a, &mut b);
}
