//! Capture files, read by an independent library.

mod conversations;
mod files;
mod support;
