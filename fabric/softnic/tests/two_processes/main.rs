//! Tests between processes. Each starts this program again for the other processes. Tests that count resources of the
//! entire process, or its waits, run in a process of their own (`is_alone`).

#[path = "../support/mod.rs"]
mod support;

mod abandoned;
mod abandoned_meeting;
mod ceilings;
mod containers;
mod datagrams_left;
mod descriptors;
mod first_contact;
mod judged_once;
mod limits_reached;
mod no_waiting;
mod process;
mod ud_processes;
mod ud_sleep;
mod users;
mod ways_left;
