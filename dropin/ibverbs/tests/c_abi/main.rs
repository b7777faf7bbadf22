//! The library's C interface, called as C programs call it: by exported name, by the tables that the header's
//! inline functions go through, with the header's structures.

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
