//! Search for system call instructions in machine code.
#![cfg(target_arch = "x86_64")]

#[path = "../src/direct_calls/instructions.rs"]
mod instructions;

use instructions::{Number, each_system_call};

/// `nop`s that a decoder needs before the instructions that it is to find.
const LEAD: [u8; 96] = [0x90; 96];

fn numbers(code: &[u8]) -> Vec<Number> {
    let mut bytes = LEAD.to_vec();
    bytes.extend(code);
    bytes.extend(LEAD);
    let mut found = Vec::new();
    each_system_call(&bytes, |_, number| {
        found.push(number);
        true
    });
    found
}

#[test]
fn finds_system_calls_and_their_numbers() {
    // mov eax, 202; syscall
    assert_eq!(numbers(&[0xB8, 202, 0, 0, 0, 0x0F, 0x05]), [Number::Known(202)]);
    // mov rax, 1; mov r10, rcx; syscall
    let write = [0x48, 0xC7, 0xC0, 1, 0, 0, 0, 0x49, 0x89, 0xCA, 0x0F, 0x05];
    assert_eq!(numbers(&write), [Number::Known(1)]);
    // xor eax, eax; syscall; ret
    assert_eq!(numbers(&[0x31, 0xC0, 0x0F, 0x05, 0xC3]), [Number::Known(0)]);
    // mov rax, rdi; syscall
    assert_eq!(numbers(&[0x48, 0x89, 0xF8, 0x0F, 0x05]), [Number::Unknown]);
    // mov eax, 202; mov rax, [rsp + 8]; syscall
    let loaded = [0xB8, 202, 0, 0, 0, 0x48, 0x8B, 0x44, 0x24, 8, 0x0F, 0x05];
    assert_eq!(numbers(&loaded), [Number::Unknown]);
    // mov eax, 202; call; syscall
    assert_eq!(numbers(&[0xB8, 202, 0, 0, 0, 0xE8, 0, 0, 0, 0, 0x0F, 0x05]), [Number::Unknown]);
    // mov eax, 202; pop rax; syscall
    assert_eq!(numbers(&[0xB8, 202, 0, 0, 0, 0x58, 0x0F, 0x05]), [Number::Unknown]);
}

#[test]
fn ignores_the_bytes_inside_of_other_instructions() {
    // mov ecx, 0x050F
    assert_eq!(numbers(&[0xB9, 0x0F, 0x05, 0, 0]), []);
    // movups xmm0, [rip + 0x050F]: the bytes are part of its displacement.
    assert_eq!(numbers(&[0x0F, 0x10, 0x05, 0x0F, 0x05, 0, 0]), []);
    // movabs rax, constant
    assert_eq!(numbers(&[0x48, 0xB8, 1, 2, 0x0F, 0x05, 3, 4, 5, 6]), []);
    // vmovdqu ymm0, [rip + 0x50F00]
    assert_eq!(numbers(&[0xC5, 0xFE, 0x6F, 0x05, 0, 0x0F, 0x05, 0]), []);
    // imul eax, eax, 0x050F
    assert_eq!(numbers(&[0x69, 0xC0, 0x0F, 0x05, 0, 0]), []);
}

#[test]
fn reads_no_byte_outside_of_the_code() {
    // Pseudo-random bytes, and prefixes of code.
    let mut state = 4711_u64;
    let mut bytes: Vec<u8> = Vec::new();
    for _ in 0..4_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match state >> 60 {
            0 => bytes.extend([0x0F, 0x05]),
            _ => bytes.push((state >> 40) as u8),
        }
    }
    for end in (0..bytes.len()).step_by(61) {
        each_system_call(&bytes[..end], |at, _| {
            assert_eq!(bytes[at..at + 2], [0x0F, 0x05]);
            true
        });
    }
}
