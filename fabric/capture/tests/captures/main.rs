//! Captures as files, read by a library that is not ours.

mod conversations;
mod files;
mod support;
