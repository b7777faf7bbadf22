//! The passive end of a measurement.

use super::end::End;
use super::handshake::{self, Seen, Stop};
use super::operation::Operation;
use super::task::{RnicTask, RnicTest};
use super::waiting::{Halt, Watch};
use super::{RnicError, Role, latency, throughput};
use crate::baseline::PeerError;
use farcall_verbs::Provider;
use rustix::event::{PollFd, PollFlags, poll};
use std::convert::Infallible;
use std::os::unix::net::UnixStream;

/// Does the target's part until it is called, then tells what it saw.
pub(crate) fn serve(
    provider: &dyn Provider,
    task: &RnicTask,
    control: &UnixStream,
    ready: impl FnOnce() -> Result<(), PeerError>,
) -> Result<(), RnicError> {
    ready()?;
    let mut end = End::connect(provider, control, &task.end_plan(Role::Target))?;
    let mut watch = Watch::target(control);
    let Err(halt) = take_part(&mut end, task, control, &mut watch);
    finish(&end, control, halt)
}

fn take_part(
    end: &mut End,
    task: &RnicTask,
    control: &UnixStream,
    watch: &mut Watch<'_>,
) -> Result<Infallible, Halt> {
    match (task.test, task.operation) {
        (RnicTest::PingPong, Operation::Write) => latency::answer_writes(end, task, watch),
        (RnicTest::PingPong, _) => latency::answer_messages(end, task, watch),
        (_, operation) if operation.consumes_receive() => throughput::absorb(end, task, watch),
        // One-sided: the owner of the memory has nothing to do.
        _ => wait_for_call(control),
    }
}

/// Sleeps until the initiator calls or is gone.
fn wait_for_call(control: &UnixStream) -> Result<Infallible, Halt> {
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

/// Tells what was seen, if the initiator still wants to know.
pub(super) fn finish(end: &End, control: &UnixStream, halt: Halt) -> Result<(), RnicError> {
    if let Halt::Failed(error) = halt {
        return Err(error);
    }
    if handshake::receive::<Stop>(control).is_err() {
        // The initiator is gone: there is nobody to serve any more.
        return Ok(());
    }
    let seen = Seen { received: end.receives.total, first_word: end.memory.first_word_incoming() };
    handshake::send(control, &seen)?;
    // The queue pairs stay until the initiator has its own down: it may still wait for an acknowledgement.
    let _ = handshake::receive::<Stop>(control);
    Ok(())
}
