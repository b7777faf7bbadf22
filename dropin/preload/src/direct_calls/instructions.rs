//! Decoder of x86-64 machine code as far as it takes to find system call instructions and their numbers.
//!
//! The two bytes of `syscall` also occur inside of longer instructions. Machine code synchronizes: decoders that begin
//! at different bytes soon agree on where instructions begin. A candidate counts if most decoders that begin before it
//! arrive at it.

/// Encoding of `syscall`.
const SYSCALL: [u8; 2] = [0x0F, 0x05];
/// Distance of the first decoder's start from the candidate, in bytes.
const WINDOW_BYTES: usize = 80;
/// Number of decoders, at consecutive bytes from the start of the window.
const DECODERS: usize = 16;
/// Length of the code before and after a call of an unknown number that must consist of instructions, in bytes.
const NEAR_BYTES: usize = 40;
const MAX_INSTRUCTION_BYTES: usize = 15;

/// Number of the system call that an instruction makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// Set by an instruction shortly before.
    Known(u32),
    /// Set elsewhere, such as by the caller of a function.
    Unknown,
}

/// Calls `found` with the offset and the number of each system call instruction in `code`, until it returns `false`.
pub fn each_system_call(code: &[u8], mut found: impl FnMut(usize, Number) -> bool) {
    let mut from = 0;
    while let Some(at) = find_pair(code, from) {
        from = at + SYSCALL.len();
        if let Some(number) = system_call_at(code, at)
            && !found(at, number)
        {
            return;
        }
    }
}

/// Returns the offset of the next candidate at or after `from`.
fn find_pair(code: &[u8], from: usize) -> Option<usize> {
    let rest = code.get(from..)?;
    // SAFETY: `memmem` reads `rest` and the two bytes of the constant only.
    let found =
        unsafe { libc::memmem(rest.as_ptr().cast(), rest.len(), SYSCALL.as_ptr().cast(), SYSCALL.len()) };
    (!found.is_null()).then(|| from + (found.addr() - rest.as_ptr().addr()))
}

/// Returns the number of the system call at `at`; `None` if no instruction begins there.
fn system_call_at(code: &[u8], at: usize) -> Option<Number> {
    let first = at.saturating_sub(WINDOW_BYTES);
    let decoders = DECODERS.min(at - first).max(1);
    let (mut arrivals, mut number) = (0, None);
    for start in first..first + decoders {
        let Some(seen) = decode_until(code, start, at) else { continue };
        arrivals += 1;
        number = match number {
            None => Some(seen),
            Some(known) if known == seen => Some(known),
            Some(_) => Some(Number::Unknown),
        };
    }
    // Constants in the code of a library decode as instructions for some bytes, but not for many.
    number.filter(|number| {
        arrivals * 2 > decoders && (*number != Number::Unknown || is_code(code, at, at + NEAR_BYTES))
    })
}

/// Returns whether instructions of ordinary programs lie between two offsets.
fn is_code(code: &[u8], mut here: usize, until: usize) -> bool {
    while here < until.min(code.len()) {
        match decode(&code[here..]) {
            Some(instruction) => here += instruction.len_bytes,
            // The last instruction may continue behind the end.
            None => return here + MAX_INSTRUCTION_BYTES > code.len(),
        }
    }
    true
}

/// Decodes from `start` on. Returns the number of the system call at `at` if an instruction begins there.
fn decode_until(code: &[u8], start: usize, at: usize) -> Option<Number> {
    let (mut here, mut number, mut broken_at) = (start, Number::Unknown, None);
    while here < at {
        let Some(instruction) = decode(&code[here..]) else {
            // No instruction begins here: a decoder continues at the next byte, as disassemblers do.
            broken_at = Some(here);
            (here, number) = (here + 1, Number::Unknown);
            continue;
        };
        match instruction.effect {
            Effect::Sets(value) => number = Number::Known(value),
            Effect::Changes => number = Number::Unknown,
            Effect::None => {}
        }
        here += instruction.len_bytes;
    }
    let is_broken_near = broken_at.is_some_and(|broken_at| at - broken_at <= NEAR_BYTES);
    (here == at && !(is_broken_near && number == Number::Unknown)).then_some(number)
}

/// Effect of an instruction on the register `eax`, which holds the number of a system call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Sets it to a constant.
    Sets(u32),
    /// Sets it to another value, or continues elsewhere.
    Changes,
    None,
}

/// One instruction.
struct Instruction {
    len_bytes: usize,
    effect: Effect,
}

/// Size of the immediate operand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Immediate {
    None,
    Byte,
    Word,
    /// Four bytes; two after the prefix 66.
    Full,
    /// As `Full`; eight bytes after REX.W.
    Wide,
    /// Address in full: eight bytes; four after the prefix 67.
    Address,
    /// Three bytes, of `enter`.
    Enter,
    /// `Byte` or `Full` for the first two of a group, else none.
    GroupByte,
    GroupFull,
}

/// Returns whether the opcode has a ModRM byte, and its immediate; `None` if programs have no such instruction: it is
/// undefined, privileged, or obsolete.
fn one_byte_opcode(opcode: u8) -> Option<(bool, Immediate)> {
    use Immediate::{Address, Byte, Enter, Full, GroupByte, GroupFull, None as No, Wide, Word};
    Some(match opcode {
        0x00..=0x3F => match opcode & 7 {
            0..=3 => (true, No),
            4 => (false, Byte),
            5 => (false, Full),
            _ => return None,
        },
        0x50..=0x5F | 0x90..=0x99 | 0x9B..=0x9F | 0xA4..=0xA7 | 0xAA..=0xAF => (false, No),
        0x63 | 0x84..=0x8F | 0xD0..=0xD3 | 0xD8..=0xDF | 0xFE | 0xFF => (true, No),
        0x68 | 0xA9 | 0xE8 | 0xE9 => (false, Full),
        0x69 | 0x81 | 0xC7 => (true, Full),
        0x6A | 0x70..=0x7F | 0xA8 | 0xB0..=0xB7 | 0xCD | 0xE0..=0xE3 | 0xEB => (false, Byte),
        0x6B | 0x80 | 0x83 | 0xC0 | 0xC1 | 0xC6 => (true, Byte),
        0xA0..=0xA3 => (false, Address),
        0xB8..=0xBF => (false, Wide),
        0xC2 => (false, Word),
        0xC8 => (false, Enter),
        0xC3 | 0xC9 | 0xCC | 0xF4 | 0xF5 | 0xF8 | 0xF9 | 0xFC | 0xFD => (false, No),
        0xF6 => (true, GroupByte),
        0xF7 => (true, GroupFull),
        _ => return None,
    })
}

/// As [`one_byte_opcode`], for opcodes after 0F.
fn two_byte_opcode(opcode: u8) -> Option<(bool, Immediate)> {
    use Immediate::{Byte, Full, None as No};
    Some(match opcode {
        0x05 | 0x0B | 0x31 | 0x34 | 0x77 | 0xA2 | 0xC8..=0xCF => (false, No),
        0x00
        | 0x02..=0x04
        | 0x06..=0x0A
        | 0x0C
        | 0x0E
        | 0x0F
        | 0x20..=0x27
        | 0x30
        | 0x32
        | 0x33
        | 0x35..=0x37
        | 0x39
        | 0x3B..=0x3F
        | 0x78..=0x7B
        | 0xA0
        | 0xA1
        | 0xA6..=0xAA
        | 0xB8
        | 0xB9
        | 0xFF => return None,
        0x70..=0x73 | 0xA4 | 0xAC | 0xBA | 0xC2 | 0xC4..=0xC6 => (true, Byte),
        0x80..=0x8F => (false, Full),
        _ => (true, No),
    })
}

/// Prefixes of an instruction.
#[derive(Default)]
struct Prefixes {
    has_operand_size: bool,
    has_address_size: bool,
    rex: u8,
}

/// Decodes the instruction at the beginning of `code`.
fn decode(code: &[u8]) -> Option<Instruction> {
    let (mut at, mut prefixes) = (0, Prefixes::default());
    while let prefix @ (0x26 | 0x2E | 0x36 | 0x3E | 0x64..=0x67 | 0xF0 | 0xF2 | 0xF3) = *code.get(at)? {
        prefixes.has_operand_size |= prefix == 0x66;
        prefixes.has_address_size |= prefix == 0x67;
        at += 1;
        if at > 14 {
            return None;
        }
    }
    if let rex @ 0x40..=0x4F = *code.get(at)? {
        prefixes.rex = rex;
        at += 1;
    }
    let opcode = *code.get(at)?;
    at += 1;
    let ((has_modrm, immediate), map) = match opcode {
        0x0F => {
            let second = *code.get(at)?;
            at += 1;
            match second {
                0x38 | 0x3A => {
                    at += 1;
                    let immediate = if second == 0x3A { Immediate::Byte } else { Immediate::None };
                    ((true, immediate), u16::from(second) << 8)
                }
                second => (two_byte_opcode(second)?, 0x0F00 | u16::from(second)),
            }
        }
        // VEX and EVEX.
        0xC4 | 0xC5 | 0x62 => {
            let map = match opcode {
                0xC5 => 1,
                0xC4 => *code.get(at)? & 0x1F,
                _ => *code.get(at)? & 7,
            };
            at += match opcode {
                0xC5 => 1,
                0xC4 => 2,
                _ => 3,
            };
            let second = *code.get(at)?;
            at += 1;
            let shape = match map {
                1 if second == 0x77 => (false, Immediate::None),
                1 if matches!(second, 0x70..=0x73 | 0xC2 | 0xC4..=0xC6) => (true, Immediate::Byte),
                1 | 2 | 5 | 6 => (true, Immediate::None),
                3 => (true, Immediate::Byte),
                _ => return None,
            };
            // Vector instructions that write `eax` are few; none precedes a system call that it numbers.
            (shape, 0xC400)
        }
        opcode => (one_byte_opcode(opcode)?, u16::from(opcode)),
    };
    let modrm = if has_modrm { Some(*code.get(at)?) } else { None };
    if let Some(modrm) = modrm {
        at += 1 + operand_bytes(modrm, code.get(at + 1).copied())?;
    }
    let full_bytes = if prefixes.has_operand_size { 2 } else { 4 };
    let is_first_of_group = modrm.is_some_and(|modrm| modrm & 0x30 == 0);
    let immediate_bytes = match immediate {
        Immediate::Byte => 1,
        Immediate::Word => 2,
        Immediate::Enter => 3,
        Immediate::Full => full_bytes,
        Immediate::Wide if prefixes.rex & 8 != 0 => 8,
        Immediate::Wide => full_bytes,
        Immediate::Address => {
            if prefixes.has_address_size {
                4
            } else {
                8
            }
        }
        Immediate::GroupByte if is_first_of_group => 1,
        Immediate::GroupFull if is_first_of_group => full_bytes,
        Immediate::None | Immediate::GroupByte | Immediate::GroupFull => 0,
    };
    let value = code.get(at..at + immediate_bytes)?;
    let effect = effect_on_eax(map, modrm, &prefixes, value);
    Some(Instruction { len_bytes: at + immediate_bytes, effect })
}

/// Returns the length of the memory operand after a ModRM byte: SIB byte and displacement.
fn operand_bytes(modrm: u8, sib: Option<u8>) -> Option<usize> {
    let (mode, operand) = (modrm >> 6, modrm & 7);
    if mode == 3 {
        return Some(0);
    }
    let has_sib = operand == 4;
    let base = if has_sib { sib? & 7 } else { operand };
    let displacement = match mode {
        0 if base == 5 => 4,
        0 => 0,
        1 => 1,
        _ => 4,
    };
    Some(usize::from(has_sib) + displacement)
}

/// Returns the effect of an instruction on `eax`. An instruction that is not known to leave it alone changes it.
fn effect_on_eax(opcode: u16, modrm: Option<u8>, prefixes: &Prefixes, value: &[u8]) -> Effect {
    let constant =
        || value.try_into().map_or(Effect::Changes, |bytes| Effect::Sets(u32::from_le_bytes(bytes)));
    let is_register = modrm.is_some_and(|modrm| modrm >> 6 == 3);
    // Operands of the ModRM byte that are `eax`.
    let is_in_reg = modrm.is_some_and(|modrm| modrm & 0x38 == 0) && prefixes.rex & 4 == 0;
    let is_in_rm = is_register && modrm.is_some_and(|modrm| modrm & 7 == 0) && prefixes.rex & 1 == 0;
    match opcode {
        0xB8 if prefixes.rex & 1 == 0 => constant(),
        0xC7 if is_in_rm => constant(),
        // `xor eax, eax`.
        0x31 | 0x33 if is_in_reg && is_in_rm => Effect::Sets(0),
        // Comparisons, stores, pushes, moves into other registers, direction and alignment.
        0x38..=0x3B
        | 0x3C
        | 0x3D
        | 0x84
        | 0x85
        | 0xA8
        | 0xA9
        | 0x50..=0x57
        | 0x68
        | 0x6A
        | 0xB9..=0xBF
        | 0xB1..=0xB7
        | 0xFC => Effect::None,
        0x58 if prefixes.rex & 1 == 0 => Effect::Changes,
        0x58..=0x5F => Effect::None,
        0x90 if prefixes.rex & 1 == 0 => Effect::None,
        0x0F1E | 0x0F1F | 0x0F18 | 0x0F0D => Effect::None,
        // Into the register operand.
        0x63
        | 0x8B
        | 0x8D
        | 0x03
        | 0x0B
        | 0x13
        | 0x1B
        | 0x23
        | 0x2B
        | 0x33
        | 0x69
        | 0x6B
        | 0x0F40..=0x0F4F
        | 0x0FAF
        | 0x0FB6
        | 0x0FB7
        | 0x0FBE
        | 0x0FBF => {
            if is_in_reg {
                Effect::Changes
            } else {
                Effect::None
            }
        }
        // Into the other operand, or memory.
        0x01
        | 0x09
        | 0x11
        | 0x19
        | 0x21
        | 0x29
        | 0x31
        | 0x80
        | 0x81
        | 0x83
        | 0x88
        | 0x89
        | 0xC0
        | 0xC1
        | 0xC6
        | 0xC7
        | 0xD0..=0xD3
        | 0xFE
        | 0x0F90..=0x0F9F => {
            if is_in_rm {
                Effect::Changes
            } else {
                Effect::None
            }
        }
        // SSE moves between vectors and memory.
        0x0F10..=0x0F17 | 0x0F28..=0x0F29 | 0x0F54..=0x0F5F | 0x0F6C..=0x0F6F | 0x0F7F | 0x0FD6 | 0x0FEF => {
            Effect::None
        }
        // Conditional jumps: where they do not jump, the code continues.
        0x70..=0x7F | 0x0F80..=0x0F8F => Effect::None,
        _ => Effect::Changes,
    }
}
