//! Compares the declarations of libibverbs' structures with the C header of this machine: every offset, size and
//! number.

use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use farcall_layout::{self as layout, mask, rdmacm, srq_mask};
use farcall_verbs::{
    Access, AtomicTarget, QpState, QpType, RdmaTarget, RecvWr, SendFlags, SendWr, Sge, UdTarget, Wc, WcFlags,
    WcOpcode, WcStatus, WrOpcode,
};

/// A C expression and its expected value.
type Fact = (String, u64);

macro_rules! fields {
    ($facts:ident, $c:literal, $rust:ty: $($field:ident),*) => {
        $(
            let c = concat!("offsetof(struct ", $c, ", ", stringify!($field), ")");
            $facts.push((c.into(), offset_of!($rust, $field) as u64));
        )*
    };
}

macro_rules! whole {
    ($facts:ident, $c:literal, $rust:ty: $($field:ident),*) => {
        $facts.push((concat!("sizeof(struct ", $c, ")").into(), size_of::<$rust>() as u64));
        fields!($facts, $c, $rust: $($field),*);
    };
}

macro_rules! numbers {
    ($facts:ident: $($c:ident = $rust:expr),* $(,)?) => { $($facts.push((stringify!($c).into(), $rust as u64));)* };
}

fn attributes(facts: &mut Vec<Fact>) {
    whole!(facts, "ibv_device_attr", layout::DeviceAttr: fw_ver, node_guid, sys_image_guid, max_mr_size,
        page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd,
        max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
        max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp,
        max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr,
        max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt);
    whole!(facts, "ibv_port_attr", layout::PortAttr: state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags,
        max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
        init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2);
    whole!(facts, "ibv_global_route", layout::GlobalRoute: dgid, flow_label, sgid_index, hop_limit, traffic_class);
    whole!(facts, "ibv_ah_attr", layout::AhAttr: grh, dlid, sl, src_path_bits, static_rate, is_global, port_num);
    whole!(facts, "ibv_qp_cap", layout::QpCap: max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data);
    whole!(facts, "ibv_qp_init_attr", layout::QpInitAttr: qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all);
    whole!(facts, "ibv_qp_attr", layout::QpAttr: qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn,
        sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
        en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout,
        retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit);
    whole!(facts, "ibv_srq_attr", layout::SrqAttr: max_wr, max_sge, srq_limit);
    whole!(facts, "ibv_srq_init_attr", layout::SrqInitAttr: srq_context, attr);
    whole!(facts, "ibv_async_event", layout::AsyncEvent: element, event_type);
}

fn objects(facts: &mut Vec<Fact>) {
    whole!(facts, "ibv_device", layout::Device: node_type, transport_type, name, dev_name, dev_path, ibdev_path);
    whole!(facts, "ibv_context", layout::Context: device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat);
    whole!(facts, "ibv_context_ops", layout::ContextOps: poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv);
    whole!(facts, "verbs_context", layout::VerbsContext: query_port, query_rt_values, create_cq_ex, query_device_ex,
        open_qp, create_qp_ex, get_srq_num, create_srq_ex, context);
    facts.push((
        "offsetof(struct verbs_context, sz)".into(),
        offset_of!(layout::VerbsContext, size_bytes) as u64,
    ));
    facts.push((
        "offsetof(struct verbs_context, priv)".into(),
        offset_of!(layout::VerbsContext, private) as u64,
    ));
    whole!(facts, "ibv_pd", layout::Pd: context, handle);
    whole!(facts, "ibv_mr", layout::Mr: context, pd, addr, length, handle, lkey, rkey);
    whole!(facts, "ibv_comp_channel", layout::CompChannel: context, fd, refcnt);
    whole!(facts, "ibv_cq", layout::Cq: context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
        async_events_completed);
    whole!(facts, "ibv_cq_ex", layout::CqEx: comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode,
        read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags, read_slid, read_sl,
        read_dlid_path_bits, read_completion_ts, read_cvlan, read_flow_tag, read_tm_info,
        read_completion_wallclock_ns);
    whole!(facts, "ibv_cq_init_attr_ex", layout::CqInitAttrEx: cqe, cq_context, channel, comp_vector, wc_flags,
        comp_mask, flags, parent_domain);
    whole!(facts, "ibv_srq", layout::Srq: context, srq_context, pd, handle, mutex, cond, events_completed);
    fields!(facts, "ibv_srq_init_attr_ex", layout::SrqInitAttrEx: srq_context, attr, comp_mask, srq_type, pd);
    whole!(facts, "ibv_qp", layout::Qp: context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state,
        qp_type, mutex, cond, events_completed);
    // Later headers add `wr_flush` at the structure's end.
    fields!(facts, "ibv_qp_ex", layout::QpEx: qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp,
        wr_atomic_fetch_add, wr_bind_mw, wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send,
        wr_send_imm, wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data,
        wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort, wr_atomic_write);
    whole!(facts, "ibv_qp_init_attr_ex", layout::QpInitAttrEx: qp_context, send_cq, recv_cq, srq, cap, qp_type,
        sq_sig_all, comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl, source_qpn, send_ops_flags);
    whole!(facts, "ibv_device_attr_ex", layout::DeviceAttrEx: orig_attr, comp_mask, odp_caps,
        completion_timestamp_mask, device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps,
        raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps, phys_port_cnt_ex);
    whole!(facts, "ibv_gid_entry", layout::GidEntry: gid, gid_index, port_num, gid_type, ndev_ifindex);
    whole!(facts, "ibv_ah", layout::Ah: context, pd, handle);
    whole!(facts, "ibv_data_buf", layout::DataBuf: addr, length);
    whole!(facts, "ibv_values_ex", layout::Values: comp_mask, raw_clock);
}

/// Structures that posting and polling pass on without translation.
fn requests_and_completions(facts: &mut Vec<Fact>) {
    whole!(facts, "ibv_sge", Sge: addr, length, lkey);
    whole!(facts, "ibv_recv_wr", RecvWr<'_>: wr_id, next);
    whole!(facts, "ibv_send_wr", SendWr<'_>: wr_id, next, opcode, send_flags);
    whole!(facts, "ibv_wc", Wc: wr_id, status, opcode, vendor_err, byte_len, qp_num, src_qp, wc_flags, pkey_index,
        slid, sl, dlid_path_bits);
    let mut at = |c: &str, offset: usize| facts.push((format!("offsetof(struct {c})"), offset as u64));
    at("ibv_wc, imm_data", offset_of!(Wc, imm_data_be));
    at("ibv_send_wr, imm_data", offset_of!(SendWr<'_>, imm_data_be));
    // The fields are private: the tests of the request types check their offsets, and this test compares these with the
    // header.
    at("ibv_send_wr, sg_list", 16);
    at("ibv_send_wr, num_sge", 24);
    at("ibv_recv_wr, sg_list", 16);
    at("ibv_recv_wr, num_sge", 24);
    let target = 40;
    at("ibv_send_wr, wr.rdma.remote_addr", target + offset_of!(RdmaTarget, remote_addr));
    at("ibv_send_wr, wr.rdma.rkey", target + offset_of!(RdmaTarget, rkey));
    at("ibv_send_wr, wr.atomic.remote_addr", target + offset_of!(AtomicTarget, remote_addr));
    at("ibv_send_wr, wr.atomic.compare_add", target + offset_of!(AtomicTarget, compare_add));
    at("ibv_send_wr, wr.atomic.swap", target + offset_of!(AtomicTarget, swap));
    at("ibv_send_wr, wr.atomic.rkey", target + offset_of!(AtomicTarget, rkey));
    at("ibv_send_wr, wr.ud.ah", target + offset_of!(UdTarget, ah));
    at("ibv_send_wr, wr.ud.remote_qpn", target + offset_of!(UdTarget, remote_qpn));
    at("ibv_send_wr, wr.ud.remote_qkey", target + offset_of!(UdTarget, remote_qkey));
}

fn connection_manager(facts: &mut Vec<Fact>) {
    whole!(facts, "rdma_event_channel", rdmacm::EventChannel: fd);
    whole!(facts, "rdma_ib_addr", rdmacm::IbAddr: sgid, dgid);
    whole!(facts, "rdma_addr", rdmacm::Addr: src_storage, dst_storage);
    whole!(facts, "ibv_sa_path_rec", rdmacm::PathRecord: dgid, sgid, raw_traffic, hop_limit, traffic_class,
        reversible, numb_path, sl, mtu_selector, mtu, rate_selector, rate, packet_life_time_selector,
        packet_life_time, preference);
    whole!(facts, "rdma_route", rdmacm::Route: addr, path_rec, num_paths);
    whole!(facts, "rdma_cm_id", rdmacm::CmId: verbs, channel, context, qp, route, ps, port_num, event,
        send_cq_channel, send_cq, recv_cq_channel, recv_cq, srq, pd, qp_type);
    whole!(facts, "rdma_conn_param", rdmacm::ConnParam: private_data, private_data_len, responder_resources,
        initiator_depth, flow_control, retry_count, rnr_retry_count, srq, qp_num);
    whole!(facts, "rdma_ud_param", rdmacm::UdParam: private_data, private_data_len, ah_attr, qp_num, qkey);
    whole!(facts, "rdma_cm_event", rdmacm::CmEvent: id, listen_id, event, status, param);
    whole!(facts, "rdma_addrinfo", rdmacm::AddrInfo: ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len,
        ai_dst_len, ai_src_addr, ai_dst_addr, ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route,
        ai_connect_len, ai_connect, ai_next);
    let mut at = |c: &str, offset: usize| facts.push((format!("offsetof(struct {c})"), offset as u64));
    at("rdma_addr, addr.ibaddr", offset_of!(rdmacm::Addr, ib));
    at("rdma_ib_addr, pkey", offset_of!(rdmacm::IbAddr, pkey_be));
    at("ibv_sa_path_rec, pkey", offset_of!(rdmacm::PathRecord, pkey_be));
    at("ibv_sa_path_rec, dlid", offset_of!(rdmacm::PathRecord, dlid_be));
    at("ibv_sa_path_rec, slid", offset_of!(rdmacm::PathRecord, slid_be));
    at("ibv_sa_path_rec, flow_label", offset_of!(rdmacm::PathRecord, flow_label_be));
    numbers!(facts: RDMA_CM_EVENT_ADDR_RESOLVED = rdmacm::event::ADDR_RESOLVED, RDMA_CM_EVENT_ADDR_ERROR =
        rdmacm::event::ADDR_ERROR, RDMA_CM_EVENT_ROUTE_RESOLVED = rdmacm::event::ROUTE_RESOLVED,
        RDMA_CM_EVENT_ROUTE_ERROR = rdmacm::event::ROUTE_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST =
        rdmacm::event::CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE = rdmacm::event::CONNECT_RESPONSE,
        RDMA_CM_EVENT_CONNECT_ERROR = rdmacm::event::CONNECT_ERROR, RDMA_CM_EVENT_UNREACHABLE =
        rdmacm::event::UNREACHABLE, RDMA_CM_EVENT_REJECTED = rdmacm::event::REJECTED, RDMA_CM_EVENT_ESTABLISHED =
        rdmacm::event::ESTABLISHED, RDMA_CM_EVENT_DISCONNECTED = rdmacm::event::DISCONNECTED,
        RDMA_CM_EVENT_DEVICE_REMOVAL = rdmacm::event::DEVICE_REMOVAL, RDMA_CM_EVENT_MULTICAST_JOIN =
        rdmacm::event::MULTICAST_JOIN, RDMA_CM_EVENT_MULTICAST_ERROR = rdmacm::event::MULTICAST_ERROR,
        RDMA_CM_EVENT_ADDR_CHANGE = rdmacm::event::ADDR_CHANGE, RDMA_CM_EVENT_TIMEWAIT_EXIT =
        rdmacm::event::TIMEWAIT_EXIT, RAI_PASSIVE = rdmacm::addr_flags::PASSIVE, RAI_NUMERICHOST =
        rdmacm::addr_flags::NUMERICHOST, RAI_NOROUTE = rdmacm::addr_flags::NOROUTE, RAI_FAMILY =
        rdmacm::addr_flags::FAMILY, RDMA_OPTION_ID = rdmacm::option::LEVEL_ID, RDMA_OPTION_ID_TOS =
        rdmacm::option::TOS, RDMA_OPTION_ID_REUSEADDR = rdmacm::option::REUSEADDR, RDMA_OPTION_ID_AFONLY =
        rdmacm::option::AFONLY, RDMA_OPTION_ID_ACK_TIMEOUT = rdmacm::option::ACK_TIMEOUT, RDMA_UDP_QKEY =
        rdmacm::UDP_QKEY, RDMA_MAX_RESP_RES = rdmacm::AS_MANY_AS_POSSIBLE, RDMA_MAX_INIT_DEPTH =
        rdmacm::AS_MANY_AS_POSSIBLE);
}

fn enumerations(facts: &mut Vec<Fact>) {
    numbers!(facts: IBV_QPT_RC = QpType::Rc, IBV_QPT_UC = QpType::Uc, IBV_QPT_UD = QpType::Ud, IBV_QPS_RESET =
        QpState::Reset, IBV_QPS_INIT = QpState::Init, IBV_QPS_RTR = QpState::Rtr, IBV_QPS_RTS = QpState::Rts,
        IBV_QPS_SQD = QpState::Sqd, IBV_QPS_SQE = QpState::Sqe, IBV_QPS_ERR = QpState::Err, IBV_WR_RDMA_WRITE =
        WrOpcode::WRITE.0, IBV_WR_RDMA_WRITE_WITH_IMM = WrOpcode::WRITE_WITH_IMM.0, IBV_WR_SEND = WrOpcode::SEND.0,
        IBV_WR_SEND_WITH_IMM = WrOpcode::SEND_WITH_IMM.0, IBV_WR_RDMA_READ = WrOpcode::READ.0,
        IBV_WR_ATOMIC_CMP_AND_SWP = WrOpcode::ATOMIC_CMP_AND_SWP.0, IBV_WR_ATOMIC_FETCH_AND_ADD =
        WrOpcode::ATOMIC_FETCH_AND_ADD.0, IBV_WC_RECV = WcOpcode::RECV.0, IBV_WC_RECV_RDMA_WITH_IMM =
        WcOpcode::RECV_RDMA_WITH_IMM.0, IBV_WC_RDMA_READ = WcOpcode::RDMA_READ.0, IBV_WC_COMP_SWAP =
        WcOpcode::COMP_SWAP.0, IBV_WC_FETCH_ADD = WcOpcode::FETCH_ADD.0, IBV_WC_WITH_IMM = WcFlags::WITH_IMM.bits(),
        IBV_WC_GRH = WcFlags::GRH.bits(), IBV_WC_WR_FLUSH_ERR = WcStatus::WR_FLUSH_ERR.0, IBV_WC_RNR_RETRY_EXC_ERR =
        WcStatus::RNR_RETRY_EXC_ERR.0, IBV_WC_RESP_TIMEOUT_ERR = WcStatus::RESP_TIMEOUT_ERR.0, IBV_WC_GENERAL_ERR =
        WcStatus::GENERAL_ERR.0, IBV_SEND_FENCE = SendFlags::FENCE.bits(), IBV_SEND_SIGNALED =
        SendFlags::SIGNALED.bits(), IBV_SEND_SOLICITED = SendFlags::SOLICITED.bits(), IBV_SEND_INLINE =
        SendFlags::INLINE.bits(), IBV_ACCESS_LOCAL_WRITE = Access::LOCAL_WRITE.bits(), IBV_ACCESS_REMOTE_WRITE =
        Access::REMOTE_WRITE.bits(), IBV_ACCESS_REMOTE_READ = Access::REMOTE_READ.bits(), IBV_ACCESS_REMOTE_ATOMIC =
        Access::REMOTE_ATOMIC.bits(), IBV_QP_STATE = mask::STATE, IBV_QP_ACCESS_FLAGS = mask::ACCESS_FLAGS,
        IBV_QP_PKEY_INDEX = mask::PKEY_INDEX, IBV_QP_PORT = mask::PORT, IBV_QP_QKEY = mask::QKEY, IBV_QP_AV =
        mask::AV, IBV_QP_PATH_MTU = mask::PATH_MTU, IBV_QP_TIMEOUT = mask::TIMEOUT, IBV_QP_RETRY_CNT =
        mask::RETRY_CNT, IBV_QP_RNR_RETRY = mask::RNR_RETRY, IBV_QP_RQ_PSN = mask::RQ_PSN, IBV_QP_MAX_QP_RD_ATOMIC =
        mask::MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER = mask::MIN_RNR_TIMER, IBV_QP_SQ_PSN = mask::SQ_PSN,
        IBV_QP_MAX_DEST_RD_ATOMIC = mask::MAX_DEST_RD_ATOMIC, IBV_QP_DEST_QPN = mask::DEST_QPN, IBV_SRQ_MAX_WR =
        srq_mask::MAX_WR, IBV_SRQ_LIMIT = srq_mask::LIMIT, IBV_TRANSPORT_IWARP = layout::TRANSPORT_IWARP,
        IBV_EVENT_CQ_ERR = 0, IBV_EVENT_QP_FATAL = 1, IBV_EVENT_QP_REQ_ERR = 2, IBV_EVENT_QP_ACCESS_ERR = 3,
        IBV_EVENT_COMM_EST = 4, IBV_EVENT_SQ_DRAINED = 5, IBV_EVENT_DEVICE_FATAL = 8, IBV_EVENT_PORT_ACTIVE = 9,
        IBV_EVENT_PORT_ERR = 10, IBV_EVENT_SRQ_ERR = 14, IBV_EVENT_SRQ_LIMIT_REACHED = 15,
        IBV_EVENT_QP_LAST_WQE_REACHED = 16, );
}

/// Compares facts with the output of a C program that includes a header of the machine.
fn compare(header: &str, package: &str, facts: &[Fact]) {
    if !Path::new("/usr/include").join(header).exists() {
        eprintln!("SKIPPED: no {header} on this machine (Debian: apt-get install {package})");
        return;
    }
    let prints: String = facts
        .iter()
        .map(|(expression, _)| format!("printf(\"%llu\\n\", (unsigned long long)({expression}));\n"))
        .collect();
    let program = format!(
        "#include <{header}>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n{prints}}}\n"
    );
    let name = header.replace('/', "-");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("gcc").arg("-o").arg(&binary).arg(&source).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let printed = String::from_utf8(Command::new(&binary).output().unwrap().stdout).unwrap();
    let values: Vec<u64> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(values.len(), facts.len());
    let wrong: Vec<String> = facts
        .iter()
        .zip(values)
        .filter(|((_, ours), header)| ours != header)
        .map(|((expression, ours), header)| format!("{expression} is {header}, here {ours}"))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_offset_size_and_number_is_the_headers() {
    let mut facts = Vec::new();
    attributes(&mut facts);
    objects(&mut facts);
    requests_and_completions(&mut facts);
    enumerations(&mut facts);
    compare("infiniband/verbs.h", "libibverbs-dev", &facts);
}

#[test]
fn matches_the_connection_manager_header_in_layout() {
    let mut facts = Vec::new();
    connection_manager(&mut facts);
    compare("rdma/rdma_cma.h", "librdmacm-dev", &facts);
}
