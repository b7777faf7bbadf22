//! Echoes: messages to a server that returns the same bytes, with many outstanding. Request and response each have an
//! operation and a transport of their own (HERD, section 3: SEND/SEND, WRITE/WRITE, WRITE/SEND).
//!
//! Each connection has a window of numbered echoes. With WRITE, echo `n` uses slot `n mod window` at either end. The
//! last byte of a message is a mark that differs from that of the previous echo in the same slot.

mod client;
mod server;

pub use server::EchoServer;

use super::endpoint::{BenchEndpoint, EndpointPlan};
use super::handshake::{self, Stop, TargetCounts};
use super::legality::Illegal;
use super::memory::Places;
use super::operation::Operation;
use super::task::{Inlining, RnicTask, RnicTest, Tuning};
use super::waiting::Watch;
use super::{RnicError, Survey};
use crate::measure::pin_thread;
use crate::peer::{BothEnds, Meter, PairPlan};
use farcall::select::SelectedNic;
use farcall_link::Transport;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Receives for each outstanding echo. With two, the next receive is posted before it is needed.
const RECEIVES_PER_ECHO: u32 = 2;

/// Operation and transport of the messages in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Leg {
    /// WRITE or SEND, each with or without immediate data.
    pub operation: Operation,
    /// Transport of the messages.
    pub transport: Transport,
}

/// One measurement of echoes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EchoTask {
    /// Messages from the client to the server.
    pub request: Leg,
    /// Messages from the server to the client.
    pub response: Leg,
    /// Length of each message in bytes.
    pub len_bytes: usize,
    /// Number of requests of a queue pair of which one is signalled.
    pub signal_every: u32,
    /// Which messages are inlined.
    pub inlining: Inlining,
    /// Echoes outstanding on each connection.
    pub window: u32,
    /// Number of connections.
    pub connections: u32,
    /// See [`Tuning::assumes_order`].
    pub assumes_order: bool,
}

/// Result of an echo measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EchoResult {
    /// The measured task.
    pub task: EchoTask,
    /// Echoes a second.
    pub echoes_per_second: f64,
    /// Number of recorded echoes.
    pub samples: u64,
    /// Total number of echoes, warm-up included. Each returned with the bytes that were sent.
    pub echoes: u64,
    /// Processor time of both ends.
    pub cores: BothEnds,
}

impl EchoTask {
    /// Checks the requirements that apply to every device.
    ///
    /// # Errors
    /// Returns an error if the specification or the measurement method does not allow the task.
    pub fn check(&self) -> Result<(), Illegal> {
        for leg in [self.request, self.response] {
            if leg.operation.returns_data() {
                return Err(Illegal {
                    what: format!("{} carries nothing to an echo's other end", leg.operation),
                    nearest: "WRITE or SEND".to_owned(),
                });
            }
            self.one_way(leg).check()?;
        }
        Ok(())
    }

    /// Checks the capabilities of a device. Callers run [`Self::check`] first.
    ///
    /// # Errors
    /// Returns an error if the device lacks a required capability.
    pub fn check_device(&self, survey: &Survey) -> Result<(), Illegal> {
        for leg in [self.request, self.response] {
            self.one_way(leg).check_device(&survey.attr, &survey.port.attr)?;
        }
        Ok(())
    }

    /// Returns one leg as a task that measures it alone.
    fn one_way(&self, leg: Leg) -> RnicTask {
        let tuning = Tuning {
            window: self.window,
            chain: 1,
            signal_every: self.signal_every,
            inlining: self.inlining,
            qps: self.connections,
            active_qps: self.connections,
            assumes_order: self.assumes_order,
            ..Tuning::LATENCY
        };
        let Leg { operation, transport } = leg;
        RnicTask { operation, transport, test: RnicTest::Throughput, len_bytes: self.len_bytes, tuning }
    }

    /// Returns whether request `number` of a queue pair, counted from 1, is signalled.
    fn signals(&self, number: u64) -> bool {
        number.is_multiple_of(self.signal_every.into())
    }

    /// Returns the group of responses, which is that of requests if they share a transport.
    fn response_lane(&self) -> usize {
        usize::from(self.request.transport != self.response.transport)
    }

    /// Returns whether messages can be lost without an error.
    pub fn is_unreliable(&self) -> bool {
        [self.request, self.response].iter().any(|leg| leg.transport != Transport::Rc)
    }

    /// Returns whether an end detects messages by polling their last byte.
    fn needs_order(&self) -> bool {
        self.request.operation == Operation::Write || self.response.operation == Operation::Write
    }

    /// Returns the number of slots of a connection: one for each of its receives, which include those of its window.
    fn places_each(&self) -> usize {
        (RECEIVES_PER_ECHO * self.window) as usize
    }

    fn end_plan(&self, comes_in: Leg) -> EndpointPlan {
        let mut groups = vec![(self.request.transport, self.connections)];
        if self.response_lane() == 1 {
            groups.push((self.response.transport, self.connections));
        }
        let receives = RECEIVES_PER_ECHO * self.window;
        let has_datagrams = groups.iter().any(|(transport, _)| *transport == Transport::Ud);
        EndpointPlan {
            places: Places {
                len_bytes: self.len_bytes,
                incoming: groups.len() * self.connections as usize * self.places_each(),
                outgoing: (self.connections * self.window) as usize,
                with_grh: has_datagrams,
            },
            groups,
            send_depth: self.window + 1,
            // Receives have slots of their own also if only introductions arrive. Introductions must not be placed
            // where the server polls for WRITEs.
            receives: if comes_in.operation.consumes_receive() || has_datagrams { receives } else { 0 },
            receives_min: receives,
            receive_batch: (self.window / 2).clamp(1, 16),
            places_differ: true,
            shares_receives: false,
            sleeps: false,
            inlining: self.inlining,
            with_atomics: false,
        }
    }

    /// Returns the last byte of echo `number` of a connection.
    fn mark_of(&self, number: u64) -> u8 {
        // The fill byte is greater, and consecutive marks in a slot differ.
        (number / u64::from(self.window) % 127) as u8
    }

    /// Returns the slot that contains echo `number` of `connection`; `received_at` is the slot of its receive.
    fn came_to(&self, leg: Leg, (connection, number): (usize, u64), received_at: usize) -> usize {
        match leg.operation {
            Operation::Send | Operation::SendImm => received_at,
            _ => self.place_of(connection, number),
        }
    }

    /// Returns the slot to which echo `number` of `connection` is written by WRITE.
    fn place_of(&self, connection: usize, number: u64) -> usize {
        connection * self.places_each() + (number % u64::from(self.window)) as usize
    }
}

impl fmt::Display for Leg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.transport, self.operation)
    }
}

impl fmt::Display for EchoTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "echo by {} and {}", self.request, self.response)?;
        if self.signal_every > 1 {
            f.write_str(", unsignalled")?;
        }
        if self.inlining != Inlining::UpTo(0) {
            f.write_str(", inlined")?;
        }
        Ok(())
    }
}

/// Measures echoes between this process and a new peer. Pins the calling thread.
///
/// # Errors
/// Returns an error if the task is illegal, if the provider, the peer or a work request fails, or if an echo is lost
/// or has wrong bytes.
pub fn measure(chosen: &SelectedNic, task: EchoTask, plan: &PairPlan) -> Result<EchoResult, RnicError> {
    task.check()?;
    task.check_device(&Survey::of(&chosen.nic))?;
    pin_thread(plan.client_core)?;
    let order = EchoServer { task, selection: chosen.selection.clone() };
    let peer = plan.start(&order)?;
    let mut end = BenchEndpoint::connect(&chosen.nic, peer.control(), &task.end_plan(task.response))?;
    if task.needs_order() {
        end.require_order(task.assumes_order)?;
    }
    let mut watch = Watch::initiator(peer.control());
    let meter = Meter::start(&peer)?;
    let echoed = client::measure(&mut end, &task, plan, &mut watch)?;
    let cores = meter.stop()?;
    handshake::send(peer.control(), &Stop)?;
    let seen: TargetCounts = handshake::receive(peer.control())?;
    if task.request.operation.consumes_receive() {
        super::count("requests received", seen.received, echoed.total)?;
    }
    Ok(EchoResult {
        task,
        echoes_per_second: echoed.bursts.per_second * f64::from(echoed.echoes_each),
        samples: echoed.bursts.count * u64::from(echoed.echoes_each),
        echoes: echoed.total,
        cores,
    })
}

#[cfg(test)]
mod tests;
