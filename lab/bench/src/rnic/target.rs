//! The passive end of a measurement.

use super::endpoint::{BenchEndpoint, EndpointPlan};
use super::handshake::{self, Stop, TargetCounts};
use super::operation::Operation;
use super::task::{RnicTask, RnicTest};
use super::waiting::{Halt, Watch};
use super::{RnicError, Role, latency, throughput};
use crate::peer::{Control, PeerError, PeerPlace, PeerTask};
use farcall::select::Selection;
use farcall_verbs::with_sources;
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;

/// Task of the target, which runs until the initiator sends a message on the control socket and then reports its
/// counts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Target {
    pub(super) task: RnicTask,
    pub(super) selection: Selection,
}

impl PeerTask for Target {
    const KIND: &'static str = "target";

    fn run(self, place: PeerPlace) -> Result<(), PeerError> {
        let Self { task, selection } = &self;
        // The task may have been sent by another host, so it is checked again.
        task.check().map_err(|refusal| PeerError::Part(refusal.to_string()))?;
        let plan = task.end_plan(Role::Target);
        serve(selection, &plan, &place, |end, watch| take_part(end, task, place.control(), watch))
    }
}

/// Connects to the initiator, runs `take_part` until the initiator ends the measurement, and reports the counts.
pub(super) fn serve(
    selection: &Selection,
    plan: &EndpointPlan,
    place: &PeerPlace,
    take_part: impl FnOnce(&mut BenchEndpoint, &mut Watch<'_>) -> Result<Infallible, Halt>,
) -> Result<(), PeerError> {
    let part = || -> Result<(), RnicError> {
        let chosen = place.nic(selection).open()?;
        place.ready()?;
        let control = place.control();
        let mut end = BenchEndpoint::connect(&chosen.nic, control, plan)?;
        let Err(halt) = take_part(&mut end, &mut Watch::target(control));
        finish(&end, control, halt)
    };
    part().map_err(|error| PeerError::Part(with_sources(&error)))
}

fn take_part(
    end: &mut BenchEndpoint,
    task: &RnicTask,
    control: &Control,
    watch: &mut Watch<'_>,
) -> Result<Infallible, Halt> {
    match (task.test, task.operation) {
        (RnicTest::PingPong, Operation::Write) => latency::answer_writes(end, task, watch),
        (RnicTest::PingPong, _) => latency::answer_messages(end, task, watch),
        (_, operation) if operation.consumes_receive() => throughput::absorb(end, task, watch),
        // One-sided operations: the target has no work.
        _ => wait_for_call(control),
    }
}

/// Runs the target's side of the measurement until the initiator sends a message on the control socket or exits.
pub(super) fn take_part_until_called(
    end: &mut BenchEndpoint,
    task: &RnicTask,
    control: &Control,
    watch: &mut Watch<'_>,
) -> Result<(), RnicError> {
    let Err(halt) = take_part(end, task, control, watch);
    match halt {
        Halt::Called => Ok(()),
        Halt::Failed(error) => Err(error),
    }
}

/// Sleeps until the initiator sends a message on the control socket or exits.
fn wait_for_call(control: &Control) -> Result<Infallible, Halt> {
    loop {
        match poll(&mut [PollFd::new(control, PollFlags::IN)], None) {
            Ok(_) => return Err(Halt::Called),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                return Err(PeerError::System { call: "poll", source: errno.into() }.into());
            }
        }
    }
}

/// Reports the counts, if the initiator still exists.
fn finish(end: &BenchEndpoint, control: &Control, halt: Halt) -> Result<(), RnicError> {
    if let Halt::Failed(error) = halt {
        return Err(error);
    }
    if handshake::receive::<Stop>(control).is_err() {
        // The initiator has exited.
        return Ok(());
    }
    let seen = TargetCounts { received: end.receives.total, first_word: end.memory.first_word_incoming() };
    handshake::send(control, &seen)?;
    // The queue pairs are retained until the initiator has destroyed its own, which may still wait for an
    // acknowledgement.
    let _ = handshake::receive::<Stop>(control);
    Ok(())
}
