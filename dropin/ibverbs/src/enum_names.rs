//! Names of statuses, events and states (`ibv_wc_status_str`, ...), and rates.

use std::ffi::{CStr, c_char, c_int};

use crate::symbols::export;

/// Returns the name with index `number`, or `other` if there is none.
fn name_of(names: &'static [&'static CStr], number: c_int, other: &'static CStr) -> *const c_char {
    usize::try_from(number).ok().and_then(|at| names.get(at)).unwrap_or(&other).as_ptr()
}

const WC_STATUS: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const EVENT_TYPE: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

const NODE_TYPE: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATE: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active deferred"];

/// `enum ibv_rate` with its multiple of 2.5 Gb/s (0: none) and its Mb/s.
const RATES: [(c_int, c_int, c_int); 22] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, 0, 14_062),
    (12, 0, 56_250),
    (13, 0, 112_500),
    (14, 0, 168_750),
    (15, 0, 25_781),
    (16, 0, 103_125),
    (17, 0, 206_250),
    (18, 0, 309_375),
    (19, 0, 28_125),
    (20, 0, 50_000),
    (21, 0, 400_000),
    (22, 0, 600_000),
    (23, 0, 800_000),
];

export! {
    "IBVERBS_1.1" {
        /// `man ibv_poll_cq`.
        fn ibv_wc_status_str(status: c_int) -> *const c_char {
            name_of(&WC_STATUS, status, c"unknown")
        }

        /// `man ibv_event_type_str`.
        fn ibv_event_type_str(event: c_int) -> *const c_char {
            name_of(&EVENT_TYPE, event, c"unknown")
        }

        /// `man ibv_event_type_str`.
        fn ibv_node_type_str(node_type: c_int) -> *const c_char {
            name_of(&NODE_TYPE, node_type, c"unknown")
        }

        /// `man ibv_event_type_str`.
        fn ibv_port_state_str(port_state: c_int) -> *const c_char {
            name_of(&PORT_STATE, port_state, c"unknown")
        }

        /// `man ibv_rate_to_mbps`.
        fn ibv_rate_to_mbps(rate: c_int) -> c_int {
            RATES.iter().find(|(number, ..)| *number == rate).map_or(-1, |(_, _, mbps)| *mbps)
        }

        /// `man ibv_rate_to_mbps`: returns 0 (the maximum) if there is none.
        fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
            RATES.iter().find(|(_, _, known)| *known == mbps).map_or(0, |(rate, ..)| *rate)
        }
    }
    "IBVERBS_1.0" {
        /// `man ibv_rate_to_mult`.
        fn ibv_rate_to_mult(rate: c_int) -> c_int {
            RATES.iter().find(|(number, mult, _)| *number == rate && *mult > 0).map_or(-1, |(_, mult, _)| *mult)
        }

        /// `man ibv_rate_to_mult`.
        fn mult_to_ibv_rate(mult: c_int) -> c_int {
            RATES.iter().find(|(_, known, _)| mult > 0 && *known == mult).map_or(0, |(rate, ..)| *rate)
        }
    }
}
