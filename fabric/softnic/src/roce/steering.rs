//! Steering of packets to the sockets of a port by a kernel program that reads the destination queue pair.
//!
//! The processes of a user share the port by SO_REUSEPORT. The kernel runs the program (classic BPF, which needs no
//! privilege) for every datagram, and selects the socket with the returned number, counted in the order of binding.

use std::os::fd::{AsRawFd, BorrowedFd};

use farcall_verbs::{Error, Result};

use super::socket::{fail, last_errno};

/// Number of blocks of queue pair numbers: the upper 12 bits of 24.
pub(super) const BLOCKS: usize = 1 << 12;

/// Maximum number of blocks that a program distinguishes. The kernel limits its length (net.core.optmem_max).
const STEERED_MAX: usize = 1_000;

/// Offset of the upper 16 bits of the destination queue pair after the UDP header.
const DEST_QPN_AT: u32 = 5;
/// Number of these bits that do not belong to the block.
const INDEX_BITS: u32 = 4;

const LOAD_HALF_WORD: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Socket number plus 1 for each block; 0 for blocks without a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Table(pub(super) [u8; BLOCKS]);

impl Table {
    /// Removes the blocks of sockets for which `is_gone` returns `true`.
    pub(super) fn forget(&mut self, mut is_gone: impl FnMut(usize) -> bool) {
        let owned = self.0.iter_mut().filter(|entry| **entry != 0);
        owned.filter(|entry| is_gone(usize::from(**entry) - 1)).for_each(|entry| *entry = 0);
    }

    /// Returns the program. A datagram for a block without a socket goes to the socket `otherwise`, which drops and
    /// counts it.
    ///
    /// # Errors
    /// Returns an error if there are too many blocks.
    fn program(&self, otherwise: usize) -> Result<Vec<libc::sock_filter>> {
        let step = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
        let mut steps = vec![step(LOAD_HALF_WORD, 0, DEST_QPN_AT), step(SHIFT_RIGHT, 0, INDEX_BITS)];
        for (block, entry) in (0..).zip(&self.0).filter(|(_, entry)| **entry != 0) {
            // Skips the return for other blocks.
            steps.push(step(JUMP_IF_EQUAL, 1, block));
            steps.push(step(RETURN, 0, u32::from(*entry) - 1));
        }
        steps.push(step(RETURN, 0, otherwise as u32));
        if steps.len() > 2 * STEERED_MAX {
            return Err(Error::Exhausted {
                operation: "share the RoCEv2 port",
                what: "blocks of 4,096 queue pair numbers that speak RoCEv2",
                limit: STEERED_MAX as u64,
                remedy: "use fewer queue pairs to other hosts",
            });
        }
        Ok(steps)
    }

    /// Makes the kernel steer packets by this table, for all sockets of the port.
    ///
    /// # Errors
    /// Returns an error if there are too many blocks, or if the kernel refuses.
    pub(super) fn attach(&self, socket: BorrowedFd<'_>, otherwise: usize) -> Result<()> {
        let mut steps = self.program(otherwise)?;
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        let len_bytes = size_of::<libc::sock_fprog>() as libc::socklen_t;
        // SAFETY: the option takes a `sock_fprog`. `program` and `steps` outlive the call, and the kernel copies them.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_REUSEPORT_CBPF,
                (&raw const program).cast(),
                len_bytes,
            )
        };
        if result == 0 { Ok(()) } else { Err(fail("steer packets by queue pair")(last_errno())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of the kernel's program for a destination queue pair.
    fn run(steps: &[libc::sock_filter], dest_qpn: u32) -> u32 {
        let datagram = [&[0; 4], &dest_qpn.to_be_bytes()[..]].concat();
        let (mut at, mut value) = (0, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = steps[at];
            at += 1;
            match code {
                LOAD_HALF_WORD => {
                    value = u32::from(u16::from_be_bytes([datagram[k as usize], datagram[k as usize + 1]]));
                }
                SHIFT_RIGHT => value >>= k,
                JUMP_IF_EQUAL => at += usize::from(if value == k { jt } else { jf }),
                RETURN => return k,
                _ => panic!("{code:#x}"),
            }
        }
    }

    #[test]
    fn a_queue_pair_leads_to_the_socket_of_its_block() {
        let mut table = Table([0; BLOCKS]);
        (table.0[1], table.0[0xABC], table.0[0xFFF]) = (4, 1, 64);
        let steps = table.program(7).unwrap();
        for (dest_qpn, socket) in
            [(0x00_1000, 3), (0x00_1FFF, 3), (0xAB_C123, 0), (0xFF_F001, 63), (0x00_2000, 7), (1, 7)]
        {
            assert_eq!(run(&steps, dest_qpn), socket, "{dest_qpn:#x}");
        }
        table.forget(|socket| socket == 0);
        assert_eq!(run(&table.program(7).unwrap(), 0xAB_C123), 7);
        assert_eq!(run(&table.program(7).unwrap(), 0xFF_F001), 63);
    }

    #[test]
    fn too_many_blocks_are_refused() {
        assert!(Table([1; BLOCKS]).program(0).is_err());
    }
}
