//! Regions over memory nodes: what threads read is what was written there last, whatever happens.

mod deaths;
mod model;
mod processes;
mod support;
mod threads;
