//! Names of the connection manager's numbers.

use farcall_layout::rdmacm::{addr_flags, event, option};

/// `RAI_*`.
pub(crate) const ADDR_FLAGS: [(u64, &str); 4] = [
    (addr_flags::PASSIVE as u64, "PASSIVE"),
    (addr_flags::NUMERICHOST as u64, "NUMERICHOST"),
    (addr_flags::NOROUTE as u64, "NOROUTE"),
    (addr_flags::FAMILY as u64, "FAMILY"),
];

/// `enum rdma_cm_event_type`, without its prefix.
pub(crate) fn event(number: u32) -> Option<&'static str> {
    event::NAMES.get(number as usize)?.to_str().ok()?.strip_prefix("RDMA_CM_EVENT_")
}

/// `enum rdma_port_space`.
pub(crate) fn port_space(number: i64) -> Option<&'static str> {
    Some(match number {
        0x02 => "IPOIB",
        0x106 => "TCP",
        0x111 => "UDP",
        0x13F => "IB",
        _ => return None,
    })
}

/// Returns whether a port space uses datagram queue pairs.
pub(crate) fn is_datagram(port_space: u32) -> bool {
    matches!(port_space, 0x02 | 0x111)
}

/// `RDMA_OPTION_ID`, `RDMA_OPTION_IB`.
pub(crate) fn option_level(number: i64) -> Option<&'static str> {
    match number {
        0 => Some("ID"),
        1 => Some("IB"),
        _ => None,
    }
}

/// `RDMA_OPTION_ID_*`, `RDMA_OPTION_IB_*`.
pub(crate) fn option(level: i32, number: i64) -> Option<&'static str> {
    match (level, i32::try_from(number).ok()?) {
        (option::LEVEL_ID, option::TOS) => Some("TOS"),
        (option::LEVEL_ID, option::REUSEADDR) => Some("REUSEADDR"),
        (option::LEVEL_ID, option::AFONLY) => Some("AFONLY"),
        (option::LEVEL_ID, option::ACK_TIMEOUT) => Some("ACK_TIMEOUT"),
        (1, 1) => Some("PATH"),
        _ => None,
    }
}

/// Returns the reason of a REJ (InfiniBand specification, volume 1, table "REJ reason").
pub(crate) fn rejection(reason: i32) -> Option<&'static str> {
    Some(match reason {
        1 => "NO_QP",
        3 => "NO_RESOURCES",
        4 => "TIMEOUT",
        5 => "UNSUPPORTED_REQUEST",
        8 => "INVALID_SERVICE_ID",
        9 => "INVALID_TRANSPORT_TYPE",
        10 => "STALE_CONNECTION",
        12 => "PRIMARY_GID_REJECTED",
        26 => "PATH_MTU_REJECTED",
        27 => "INSUFFICIENT_RESPONDER_RESOURCES",
        28 => "CONSUMER_REJECT",
        _ => return None,
    })
}

/// Returns the reason why a SIDR REP contains no queue pair.
pub(crate) fn service_status(status: i32) -> Option<&'static str> {
    match status {
        1 => Some("SERVICE_NOT_SUPPORTED"),
        2 => Some("REJECTED_BY_SERVICE_PROVIDER"),
        3 => Some("NO_QP"),
        _ => None,
    }
}

/// Returns whether a function fills an argument.
pub(crate) fn is_output(call: &str, argument: &str) -> bool {
    matches!(
        (call, argument),
        ("rdma_create_id" | "rdma_create_ep" | "rdma_get_request", "id")
            | ("rdma_get_cm_event", "event")
            | ("rdma_get_devices", "num_devices")
            | ("rdma_get_remote_ece", "ece")
            | ("rdma_getaddrinfo", "res")
            | ("rdma_init_qp_attr", "attr_mask")
    )
}

/// Returns whether a function reads and then fills an argument.
pub(crate) fn is_granted(call: &str, argument: &str) -> bool {
    matches!(
        (call, argument),
        ("rdma_create_qp" | "rdma_create_qp_ex" | "rdma_create_srq" | "rdma_create_srq_ex", "id" | "attr")
            | ("rdma_bind_addr" | "rdma_listen", "id")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers_have_words_and_others_have_none() {
        assert_eq!((event(9), event(16)), (Some("ESTABLISHED"), None));
        assert_eq!((port_space(0x106), port_space(1)), (Some("TCP"), None));
        assert_eq!((option(0, 1), option(1, 1), option(2, 0)), (Some("REUSEADDR"), Some("PATH"), None));
        assert_eq!((rejection(28), rejection(0)), (Some("CONSUMER_REJECT"), None));
    }
}
