//! The library's C interface, used like a C program does: exported names, the tables that the header's inline
//! functions use, and the header's structures.

mod completions;
mod errors;
mod library;
mod objects;
mod pairs;
mod refusals;
mod region_names;
mod sanitizer;
mod sequences;
mod table;
mod threads;
mod traffic;
mod world;
