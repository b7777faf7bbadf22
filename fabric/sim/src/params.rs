//! All constants of the world. They model no particular hardware: round numbers of a realistic order of magnitude.

use farcall_verbs::Mtu;
use farcall_wire::{NewRateControl, dcqcn};

/// Durations and limits. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Params {
    /// MTU of all ports.
    pub mtu: Mtu,
    /// Time from a doorbell until the device reads the work request.
    pub doorbell_ns: u64,
    /// Interval between two packets of one queue pair.
    pub packet_gap_ns: u64,
    /// Time from a packet's arrival until its first byte is placed.
    pub placement_ns: u64,
    /// Maximum time from a READ's arrival until memory is read for it.
    pub read_max_ns: u64,
    /// Maximum time between two chunks of one payload.
    pub piece_gap_ns: u64,
    /// Maximum number of chunks of one packet's payload.
    pub pieces_max: u64,
    /// Whether the payload of WRITEs is placed in address order, the final byte last: the result of
    /// [`farcall_verbs::RawQp::places_in_order`].
    pub placement_in_order: bool,
    /// CPU time of one step of an endpoint.
    pub step_ns: u64,
    /// CPU time of one doorbell.
    pub post_ns: u64,
    /// CPU time of one poll of a completion queue.
    pub poll_ns: u64,
    /// CPU time of any other verbs call.
    pub call_ns: u64,
    /// Interval between two iterations of a polling endpoint.
    pub poll_gap_ns: u64,
    /// Number of idle iterations of a polling endpoint before further ones are skipped.
    pub idle_polls: u32,
    /// Time from the readiness of a descriptor until the next step of an endpoint that sleeps on it.
    pub wake_ns: u64,
    /// Initial and minimum limit of a queue pair's unacknowledged packets.
    pub unacknowledged_min: u32,
    /// Maximum limit of a queue pair's unacknowledged packets, reached while none are lost.
    pub unacknowledged_max: u32,
    /// Rate control of a queue pair after congestion notifications.
    pub rate_control: NewRateControl,
    /// Attempts of an established pipe to send a segment through a partition before it is reset.
    pub pipe_attempts: u32,
    /// Interval between two such attempts.
    pub pipe_retry_ns: u64,
    /// Device limits.
    pub limits: Limits,
}

/// Limits of a simulated device.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of queue pairs of a node.
    pub qps: u32,
    /// Maximum number of work requests in one queue.
    pub qp_wr: u32,
    /// Maximum number of elements in one request.
    pub sges: u32,
    /// Maximum number of completion queues of a node.
    pub cqs: u32,
    /// Maximum number of completions in one queue.
    pub cqes: u32,
    /// Maximum number of regions of a node.
    pub mrs: u32,
    /// Maximum number of shared receive queues of a node.
    pub srqs: u32,
    /// Maximum length of inline data in bytes.
    pub inline_bytes: u32,
    /// Maximum number of outstanding READs and atomics of a queue pair.
    pub rd_atomic: u8,
    /// Maximum length of a message in bytes.
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
