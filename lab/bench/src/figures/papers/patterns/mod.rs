//! B: a study of communication patterns (Datenbank-Spektrum 2020).

mod figure_10;
mod figure_3a;
mod figure_3b;
mod figure_4a;
mod figure_4b;
mod figure_5;
mod figure_6;
mod figure_7;
mod figure_8;
mod figure_9a;
mod figure_9b;
mod findings;
mod section_4_1;
mod section_8;
mod table_1;
mod table_2;

use crate::experiments::calls::{CallTask, Callee};
use crate::figures::experiment::{Experiment, Paper};
pub(super) use findings::findings;

const PAPER: Paper = Paper {
    letter: 'B',
    title: "RDMA Communication Patterns: A Systematic Evaluation",
    setup: "Six nodes, each with two 14-core Xeon Gold 5120 and two ConnectX-5, one EDR switch; 64-byte requests, \
            4 million responses, mean of 10 runs.",
};

/// Experiments in the paper's order.
pub(super) const EXPERIMENTS: &[&Experiment] = &[
    &section_4_1::EXPERIMENT,
    &figure_3a::EXPERIMENT,
    &figure_3b::EXPERIMENT,
    &figure_4a::EXPERIMENT,
    &figure_4b::EXPERIMENT,
    &figure_5::SMALL,
    &figure_5::PAGE,
    &figure_5::LARGE,
    &figure_6::SMALL,
    &figure_6::PAGE,
    &figure_7::EXPERIMENT,
    &table_1::EXPERIMENT,
    &figure_8::SMALL,
    &figure_8::PAGE,
    &table_2::EXPERIMENT,
    &figure_9a::EXPERIMENT,
    &figure_9b::EXPERIMENT,
    &figure_10::PAGE,
    &figure_10::LARGE,
    &section_8::EXPERIMENT,
];

/// Names of the patterns in the paper: the request's verb, then the response's.
const WRITE_WRITE: &str = "WriteWrite";
const SEND_WRITE: &str = "SendWrite";
const WRITE_SEND: &str = "WriteSend";
const SEND_SEND: &str = "SendSend";
/// Patterns with their presets.
const PATTERNS: [(&str, &str); 4] = [
    (WRITE_WRITE, "server-reply"),
    (SEND_WRITE, "send-write"),
    (WRITE_SEND, "write-send"),
    (SEND_SEND, "send-send"),
];

/// Lengths of responses in bytes; longer ones would need several slots here.
const RESPONSE_LENS_BYTES: [u32; 5] = [64, 256, 1024, 4096, 16_384];
/// Eight threads on each of one to five nodes.
const REQUESTERS: [u32; 5] = [8, 16, 24, 32, 40];

/// Differences of all experiments from the paper's.
const DIFFERS: &str = "Two processes, a core each. Requesters are connections, all run by one client thread, \
                       which sends on all of them and then waits for all responses. SENDs land in receives of their own \
                       connection, not in a shared receive queue. Responses come out of 64 MiB.";
/// Note for experiments that only know CPU time.
const TIME_NOT_CYCLES: &str = "Processor time of the responder, in nanoseconds; the paper counts instructions or cycles, \
                               which are not read here yet.";
/// Note for experiments with more threads than processors.
const ONE_PROCESSOR: &str = "All requesters and the dispatcher share one processor, all responders another: what is shown is \
                             what the work costs, not what it gains by more processors.";
const MANY_DIFFERS: &str =
    "One server process; each requester calls a responder at random, one call at a time.";
/// Number in the paper, on nine nodes.
const MANY_REQUESTERS: u32 = 90;
/// Numbers in the paper, on three nodes.
const RESPONDERS: [u16; 3] = [6, 12, 18];

/// Returns calls with requests of 64 bytes, one outstanding on each connection.
fn responses(preset: &'static str, len_bytes: u32, requesters: u32) -> CallTask {
    CallTask { callee: Callee::Block { len_bytes }, connections: requesters, ..CallTask::small(preset) }
}
