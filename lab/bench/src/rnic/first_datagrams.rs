//! Datagrams exchanged before the measurement. To send the first ones, a device may have to resolve the address of its
//! destination, and may drop further datagrams in the meantime.

use super::RnicError;
use super::endpoint::{BenchEndpoint, group_of};
use super::handshake;
use super::memory::FILL;
use super::operation::Operation;
use super::waiting::LOSS_AFTER;
use crate::peer::{Control, PeerError};
use farcall_link::Transport;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Maximum number of rounds in which introductions are sent.
const ROUNDS: u32 = 40;

/// Queue pairs, counted over all groups, that have not received an introduction. Each introduction sent to them is
/// awaited, even if one of an earlier round arrives in the meantime: none may arrive during the measurement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Missing(Vec<usize>);

impl BenchEndpoint {
    /// Sends a datagram over each datagram queue pair and waits for that of the other end. Lost datagrams are sent
    /// again.
    pub(super) fn exchange_first_datagrams(&mut self, control: &Control) -> Result<(), RnicError> {
        let mut mine = Missing(self.datagram_qps());
        if mine.0.is_empty() {
            return Ok(());
        }
        let mut theirs = mine.clone();
        for round in 0..ROUNDS {
            for qp in &theirs.0 {
                self.say_hello(*qp, round)?;
            }
            self.hear(&mut mine, round, theirs.0.len())?;
            theirs = handshake::exchange(control, &mine)?;
            if mine.0.is_empty() && theirs.0.is_empty() {
                // Introductions do not count as messages.
                self.receives.total = 0;
                return Ok(());
            }
        }
        Err(PeerError::Exchange("no datagram arrives".to_owned()).into())
    }

    fn datagram_qps(&self) -> Vec<usize> {
        let transports = self.groups.iter().flat_map(|group| group.qps.iter().map(|_| group.transport));
        transports
            .enumerate()
            .filter(|(_, transport)| *transport == Transport::Ud)
            .map(|(qp, _)| qp)
            .collect()
    }

    fn say_hello(&mut self, qp: usize, round: u32) -> Result<(), RnicError> {
        self.memory.mark_outgoing(0, FILL);
        let place = self.memory.outgoing(0);
        self.post(Operation::SendImm, group_of(&self.groups, qp), place, round as usize, true)
    }

    /// Handles the completions of `sent` introductions and the other end's introductions of this round, as far as they
    /// arrive before the loss timeout.
    fn hear(&mut self, missing: &mut Missing, round: u32, sent: usize) -> Result<(), RnicError> {
        let start = Instant::now();
        let mut completed = 0;
        while completed < sent || (!missing.0.is_empty() && start.elapsed() < LOSS_AFTER) {
            let count = self.poll()?;
            for index in 0..count {
                let wc = self.wcs[index];
                if wc.opcode.is_receive() {
                    let qp = self.receives.qp_of(&wc);
                    if wc.imm() == Some(round) {
                        missing.0.retain(|missing| *missing != qp);
                    }
                    self.received(qp)?;
                } else {
                    self.completed(&wc);
                    completed += 1;
                }
            }
        }
        Ok(())
    }
}
