//! Requests in the kernel's format, for tests.

use super::wire::{Body, Opcode};

fn request(opcode: Opcode, unique: u64, node: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u32(40 + body.len() as u32);
    bytes.put_u32(opcode as u32);
    bytes.put_u64(unique);
    bytes.put_u64(node);
    (0..4).for_each(|_| bytes.put_u32(0));
    bytes.extend_from_slice(body);
    bytes
}

fn named(words: &[u32], names: &[&str]) -> Vec<u8> {
    let mut body = Vec::new();
    words.iter().for_each(|word| body.put_u32(*word));
    names.iter().for_each(|name| body.extend([name.as_bytes(), b"\0"].concat()));
    body
}

pub fn lookup(unique: u64, parent: u64, name: &str) -> Vec<u8> {
    request(Opcode::Lookup, unique, parent, &named(&[], &[name]))
}

pub fn create(unique: u64, parent: u64, name: &str) -> Vec<u8> {
    request(Opcode::Create, unique, parent, &named(&[0, 0o100_644, 0, 0], &[name]))
}

pub fn mkdir(unique: u64, parent: u64, name: &str) -> Vec<u8> {
    request(Opcode::Mkdir, unique, parent, &named(&[0o755, 0], &[name]))
}

pub fn unlink(unique: u64, parent: u64, name: &str) -> Vec<u8> {
    request(Opcode::Unlink, unique, parent, &named(&[], &[name]))
}

pub fn rename(unique: u64, from: (u64, &str), to: (u64, &str)) -> Vec<u8> {
    request(Opcode::Rename, unique, from.0, &named(&[to.0 as u32, 0], &[from.1, to.1]))
}

pub fn readdirplus(unique: u64, node: u64) -> Vec<u8> {
    request(Opcode::Readdirplus, unique, node, &named(&[0, 0, 0, 0, 4_096, 0], &[]))
}

pub fn release(unique: u64, node: u64) -> Vec<u8> {
    request(Opcode::Release, unique, node, &[])
}

pub fn forget(unique: u64, node: u64, lookups: u64) -> Vec<u8> {
    request(Opcode::Forget, unique, node, &lookups.to_ne_bytes())
}
