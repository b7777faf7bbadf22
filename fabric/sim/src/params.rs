//! All constants of the world in one place. No model of any particular hardware: round numbers of its order.

use farcall_verbs::Mtu;
use farcall_wire::{NewRateControl, dcqcn};

/// How long things take, and how large things may be. Times in nanoseconds.
#[derive(Clone, Debug)]
pub struct Params {
    /// MTU of all ports.
    pub mtu: Mtu,
    /// From a doorbell to the device's first look at the work request.
    pub doorbell_ns: u64,
    /// Between two packets that one queue pair sends.
    pub packet_gap_ns: u64,
    /// From a packet's arrival until its first byte is placed.
    pub placement_ns: u64,
    /// At most so long from a READ's arrival until memory is read for it.
    pub read_max_ns: u64,
    /// At most so long between two pieces of one payload.
    pub piece_gap_ns: u64,
    /// At most so many pieces are made of one packet's payload.
    pub pieces_max: u64,
    /// Whether payload of WRITEs lands in address order, the final byte last: what
    /// [`farcall_verbs::RawQp::places_in_order`] answers.
    pub placement_in_order: bool,
    /// CPU debt of one step of an endpoint.
    pub step_ns: u64,
    /// CPU debt of one doorbell.
    pub post_ns: u64,
    /// CPU debt of one poll of a completion queue.
    pub poll_ns: u64,
    /// CPU debt of any other call of verbs.
    pub call_ns: u64,
    /// Pause between two looks of a polling endpoint.
    pub poll_gap_ns: u64,
    /// Empty looks of a polling endpoint before its further looks are elided.
    pub idle_polls: u32,
    /// From readiness of what a sleeping endpoint waits on until its next step.
    pub wake_ns: u64,
    /// Packets that a queue pair may have unacknowledged at first, and always.
    pub unacknowledged_min: u32,
    /// Packets that it may have unacknowledged at most, while none are lost.
    pub unacknowledged_max: u32,
    /// What slows a queue pair down whose peer tells of congestion.
    pub rate_control: NewRateControl,
    /// Attempts of an established pipe to get a segment through a partition before it is reset.
    pub pipe_attempts: u32,
    /// Between two such attempts.
    pub pipe_retry_ns: u64,
    /// Device limits.
    pub limits: Limits,
}

/// Limits of a simulated device.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Queue pairs of a node.
    pub qps: u32,
    /// Work requests in one queue.
    pub qp_wr: u32,
    /// Elements in one request.
    pub sges: u32,
    /// Completion queues of a node.
    pub cqs: u32,
    /// Completions in one queue.
    pub cqes: u32,
    /// Regions of a node.
    pub mrs: u32,
    /// Shared receive queues of a node.
    pub srqs: u32,
    /// Bytes of inline data.
    pub inline_bytes: u32,
    /// Outstanding READs and atomics of a queue pair.
    pub rd_atomic: u8,
    /// Bytes in one message.
    pub message_bytes: u64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            mtu: Mtu::Mtu4096,
            doorbell_ns: 150,
            packet_gap_ns: 40,
            placement_ns: 60,
            read_max_ns: 600,
            piece_gap_ns: 120,
            pieces_max: 4,
            placement_in_order: true,
            step_ns: 60,
            post_ns: 80,
            poll_ns: 20,
            call_ns: 500,
            poll_gap_ns: 50,
            idle_polls: 24,
            wake_ns: 4_000,
            unacknowledged_min: 64,
            unacknowledged_max: 64,
            rate_control: dcqcn,
            pipe_attempts: 20,
            pipe_retry_ns: 5_000_000,
            limits: Limits {
                qps: 65_536,
                qp_wr: 16_384,
                sges: 16,
                cqs: 65_536,
                cqes: 1 << 20,
                mrs: 65_536,
                srqs: 4_096,
                inline_bytes: 512,
                rd_atomic: 16,
                message_bytes: 1 << 31,
            },
        }
    }
}
