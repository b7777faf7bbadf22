//! The system's libibverbs as a provider: any RNIC with a kernel driver, and the kernel's own software RNIC
//! (`rdma_rxe`).
//!
//! The library is loaded at run time, so a program that contains this crate starts on machines without it;
//! [`devices`](farcall_verbs::Provider::devices) then returns an error that names the packages to install. The
//! library's structures are declared in [`farcall_layout`], and a test compares them with the C header of the machine.
//! Work requests and completions of `farcall-verbs` have libibverbs' layout already: posting and polling pass them on
//! unchanged, through the function table of the opened device, as the C header's inline functions do.
//!
//! Failures outside of the program have a message with a remedy: no library, no kernel module, a container without the
//! device nodes, missing permissions, the limit of locked memory ([`survey`] detects them without opening a device).
//!
//! iWARP devices (siw, Chelsio) are listed but cannot be connected: they need the RDMA connection manager.

mod ah;
mod chain;
mod channel;
mod context;
mod cq;
mod device;
mod domain;
mod event;
mod fault;
mod gid_table;
mod library;
mod mr;
mod object;
mod open_device;
mod pd;
mod probe;
mod qp;
mod srq;
pub mod survey;

pub use device::Ibv;

/// The name of this provider.
pub const NAME: &str = "ibv";
