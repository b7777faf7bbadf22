//! Regions over memory nodes: threads read the last written values in every situation.

mod deaths;
mod model;
mod processes;
mod support;
mod threads;
