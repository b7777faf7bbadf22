//! Tests of the RoCEv2 port. Each runs in a process and a network namespace of its own (`is_apart`), where the port is
//! free.

#[path = "../support/mod.rs"]
mod support;

mod congestion;
mod crowd_abroad;
mod kept_acknowledgements;
mod port_shared;
mod source_ports;
mod strangers;
mod trains;
mod uc_abroad;
mod ud_abroad;
