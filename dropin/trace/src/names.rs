//! Names of numbers.

use farcall_verbs::{QpAttrMask, WcOpcode, WrOpcode};

use crate::cm_names;

/// `enum ibv_qp_attr_mask`, without its prefix.
pub(crate) fn qp_attr_mask() -> Vec<(u64, &'static str)> {
    QpAttrMask::all().iter_names().map(|(name, bit)| (bit.bits().into(), name)).collect()
}

/// `enum ibv_srq_attr_mask`.
pub(crate) const SRQ_ATTR_MASK: [(u64, &str); 2] = [(1, "MAX_WR"), (2, "LIMIT")];

/// `enum ibv_access_flags`.
pub(crate) const ACCESS: [(u64, &str); 11] = [
    (1, "LOCAL_WRITE"),
    (1 << 1, "REMOTE_WRITE"),
    (1 << 2, "REMOTE_READ"),
    (1 << 3, "REMOTE_ATOMIC"),
    (1 << 4, "MW_BIND"),
    (1 << 5, "ZERO_BASED"),
    (1 << 6, "ON_DEMAND"),
    (1 << 7, "HUGETLB"),
    (1 << 8, "FLUSH_GLOBAL"),
    (1 << 9, "FLUSH_PERSISTENT"),
    (1 << 20, "RELAXED_ORDERING"),
];

/// `enum ibv_rereg_mr_flags`, without its prefix.
pub(crate) const REREG_FLAGS: [(u64, &str); 3] =
    [(1, "CHANGE_TRANSLATION"), (1 << 1, "CHANGE_PD"), (1 << 2, "CHANGE_ACCESS")];

/// `enum ibv_send_flags`.
pub(crate) const SEND_FLAGS: [(u64, &str); 5] =
    [(1, "FENCE"), (1 << 1, "SIGNALED"), (1 << 2, "SOLICITED"), (1 << 3, "INLINE"), (1 << 4, "IP_CSUM")];

/// `enum ibv_wc_flags`.
pub(crate) const WC_FLAGS: [(u64, &str); 4] =
    [(1, "GRH"), (1 << 1, "WITH_IMM"), (1 << 2, "IP_CSUM_OK"), (1 << 3, "WITH_INV")];

/// Returns the name with index `number`; `None` if there is none.
fn nth(names: &'static [&'static str], number: u64) -> Option<&'static str> {
    usize::try_from(number).ok().and_then(|at| names.get(at)).copied().filter(|name| !name.is_empty())
}

/// `enum ibv_qp_state`.
pub(crate) fn qp_state(state: u32) -> Option<&'static str> {
    nth(&["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR", "UNKNOWN"], state.into())
}

/// `enum ibv_qp_type`.
pub(crate) fn qp_type(qp_type: u32) -> Option<&'static str> {
    nth(&["", "", "RC", "UC", "UD", "", "", "", "RAW_PACKET", "XRC_SEND", "XRC_RECV"], qp_type.into())
}

/// Converts `enum ibv_mtu` to bytes.
pub(crate) fn mtu_bytes(mtu: u32) -> Option<u32> {
    (1..=5).contains(&mtu).then(|| 128 << mtu)
}

/// `enum ibv_port_state`.
pub(crate) fn port_state(state: u32) -> Option<&'static str> {
    nth(&["NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"], state.into())
}

/// `enum ibv_wr_opcode`.
pub(crate) fn wr_opcode(opcode: WrOpcode) -> Option<&'static str> {
    const NAMES: [&str; 15] = [
        "RDMA_WRITE",
        "RDMA_WRITE_WITH_IMM",
        "SEND",
        "SEND_WITH_IMM",
        "RDMA_READ",
        "ATOMIC_CMP_AND_SWP",
        "ATOMIC_FETCH_AND_ADD",
        "LOCAL_INV",
        "BIND_MW",
        "SEND_WITH_INV",
        "TSO",
        "DRIVER1",
        "",
        "FLUSH",
        "ATOMIC_WRITE",
    ];
    nth(&NAMES, opcode.0.into())
}

/// `enum ibv_wc_opcode`.
pub(crate) fn wc_opcode(opcode: WcOpcode) -> Option<&'static str> {
    const SENDS: [&str; 8] =
        ["SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD", "BIND_MW", "LOCAL_INV", "TSO"];
    match opcode {
        WcOpcode::RECV => Some("RECV"),
        WcOpcode::RECV_RDMA_WITH_IMM => Some("RECV_RDMA_WITH_IMM"),
        WcOpcode(number) => nth(&SENDS, number.into()),
    }
}

/// `enum ibv_event_type`.
pub(crate) fn event(event_type: u32) -> Option<&'static str> {
    const NAMES: [&str; 20] = [
        "CQ_ERR",
        "QP_FATAL",
        "QP_REQ_ERR",
        "QP_ACCESS_ERR",
        "COMM_EST",
        "SQ_DRAINED",
        "PATH_MIG",
        "PATH_MIG_ERR",
        "DEVICE_FATAL",
        "PORT_ACTIVE",
        "PORT_ERR",
        "LID_CHANGE",
        "PKEY_CHANGE",
        "SM_CHANGE",
        "SRQ_ERR",
        "SRQ_LIMIT_REACHED",
        "QP_LAST_WQE_REACHED",
        "CLIENT_REREGISTER",
        "GID_CHANGE",
        "WQ_FATAL",
    ];
    nth(&NAMES, event_type.into())
}

/// Error numbers that verbs return.
pub(crate) fn errno(number: i32) -> Option<&'static str> {
    Some(match number {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EINTR => "EINTR",
        libc::EIO => "EIO",
        libc::EBADF => "EBADF",
        libc::EAGAIN => "EAGAIN",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EFAULT => "EFAULT",
        libc::EBUSY => "EBUSY",
        libc::ENODEV => "ENODEV",
        libc::EINVAL => "EINVAL",
        libc::EMFILE => "EMFILE",
        libc::ENOSYS => "ENOSYS",
        libc::ENODATA => "ENODATA",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EPROTONOSUPPORT => "EPROTONOSUPPORT",
        libc::EAFNOSUPPORT => "EAFNOSUPPORT",
        libc::EADDRINUSE => "EADDRINUSE",
        libc::ECONNRESET => "ECONNRESET",
        libc::EISCONN => "EISCONN",
        libc::ENOTCONN => "ENOTCONN",
        libc::EADDRNOTAVAIL => "EADDRNOTAVAIL",
        libc::ENETUNREACH => "ENETUNREACH",
        libc::ECONNREFUSED => "ECONNREFUSED",
        libc::EHOSTUNREACH => "EHOSTUNREACH",
        libc::ETIMEDOUT => "ETIMEDOUT",
        _ => return None,
    })
}

/// Functions that return a number rather than an error number.
pub(crate) const COUNTING: [&str; 11] = [
    "ibv_poll_cq",
    "ibv_get_device_index",
    "ibv_is_fork_initialized",
    "ibv_get_pkey_index",
    "ibv_query_qp_data_in_order",
    "ibv_get_device_guid",
    "ibv_read_sysfs_file",
    "ibv_rate_to_mult",
    "ibv_rate_to_mbps",
    "mult_to_ibv_rate",
    "mbps_to_ibv_rate",
];

/// Returns whether a function only converts numbers to names or to other numbers.
pub(crate) fn is_silent(call: &str) -> bool {
    call.ends_with("_str")
        || call.contains("_rate")
        || call.contains("sysfs")
        || matches!(call, "ibv_get_device_name" | "ibv_qp_to_qp_ex")
}

/// Returns whether a function fills an argument.
pub(crate) fn is_output(call: &str, argument: &str) -> bool {
    matches!(
        (call, argument),
        ("ibv_get_device_list", "num_devices")
            | ("ibv_query_device" | "ibv_query_device_ex" | "ibv_query_port" | "ibv_query_srq", "attr")
            | ("ibv_query_gid", "gid")
            | ("ibv_query_gid_ex", "entry")
            | ("ibv_query_gid_table", "entries")
            | ("ibv_query_pkey", "pkey_be")
            | ("ibv_query_qp", "attr" | "init")
            | ("ibv_query_ece", "ece")
            | ("ibv_get_cq_event", "cq" | "cq_context")
            | ("ibv_get_async_event", "event")
            | ("ibv_init_ah_from_wc", "attr")
            | ("ibv_resolve_eth_l2_from_gid", "mac" | "vlan")
    ) || cm_names::is_output(call, argument)
}

/// Returns whether a function reads and then fills an argument.
pub(crate) fn is_granted(call: &str, argument: &str) -> bool {
    matches!((call, argument), ("ibv_create_qp" | "ibv_create_qp_ex" | "ibv_create_srq", "attr"))
        || cm_names::is_granted(call, argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers_have_words_and_others_have_none() {
        assert_eq!(qp_state(3), Some("RTS"));
        assert_eq!((qp_type(4), qp_type(5)), (Some("UD"), None));
        assert_eq!((mtu_bytes(5), mtu_bytes(0), mtu_bytes(6)), (Some(4096), None, None));
        assert_eq!(wr_opcode(WrOpcode::ATOMIC_FETCH_AND_ADD), Some("ATOMIC_FETCH_AND_ADD"));
        assert_eq!((wr_opcode(WrOpcode(12)), wr_opcode(WrOpcode(77))), (None, None));
        assert_eq!(wc_opcode(WcOpcode::RECV_RDMA_WITH_IMM), Some("RECV_RDMA_WITH_IMM"));
        assert_eq!(event(1), Some("QP_FATAL"));
        assert_eq!((errno(libc::ENOMEM), errno(-5)), (Some("ENOMEM"), None));
    }
}
