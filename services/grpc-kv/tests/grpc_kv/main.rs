//! Tests of the key-value service: the store against a model, the service over each transport, and durability.

mod calls;
mod durability;
mod hosts;
mod limits;
mod model;
mod snapshots;
mod support;
