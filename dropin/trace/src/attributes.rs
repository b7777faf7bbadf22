//! Structures that are filled in by programs, or for them.

use std::ffi::CStr;

use farcall_layout::{
    AhAttr, AsyncEvent, CqInitAttrEx, DeviceAttr, Element, GidEntry, PortAttr, Qp, QpAttr, QpCap, QpInitAttr,
    QpInitAttrEx, Srq, SrqAttr, SrqInitAttr, SrqInitAttrEx, event_of, mask,
};
use farcall_verbs::Wc;

use crate::argument::{Argument, Hint, Phase, variables};
use crate::line::Line;
use crate::names;

fn format_mtu(line: &mut Line, mtu: u32) {
    match names::mtu_bytes(mtu) {
        Some(bytes) => line.number(bytes),
        None => line.word_fmt(format_args!("ibv_mtu({mtu})")),
    }
}

fn format_cap(line: &mut Line, cap: &QpCap) {
    line.object(|line| {
        line.numbers([
            ("max_send_wr", cap.max_send_wr),
            ("max_recv_wr", cap.max_recv_wr),
            ("max_send_sge", cap.max_send_sge),
            ("max_recv_sge", cap.max_recv_sge),
            ("max_inline_data", cap.max_inline_data),
        ]);
    });
}

pub(crate) fn format_path(line: &mut Line, path: &AhAttr) {
    line.object(|line| {
        if path.is_global != 0 {
            line.key("dgid").gid(path.grh.dgid);
            line.key("sgid_index").number(path.grh.sgid_index);
        }
        if path.is_global == 0 || path.dlid != 0 {
            line.key("dlid").number(path.dlid);
        }
        if path.sl != 0 {
            line.key("sl").number(path.sl);
        }
        line.key("port_num").number(path.port_num);
    });
}

/// Formats the members of a queue pair's attributes that a mask selects.
fn format_qp_attr(line: &mut Line, attr: &QpAttr, attr_mask: i32) {
    macro_rules! members {
        ($line:ident, $($bit:expr => $name:ident: $format:expr;)*) => {
            $(if attr_mask & $bit != 0 {
                $format($line.key(stringify!($name)), attr.$name);
            })*
        };
    }
    fn number(line: &mut Line, value: impl Into<u64>) {
        line.number(value.into());
    }
    fn state(line: &mut Line, state: u32) {
        line.word_or_number(names::qp_state(state), state);
    }
    fn access(line: &mut Line, flags: u32) {
        line.flags(flags.into(), &names::ACCESS);
    }
    fn key(line: &mut Line, key: u32) {
        line.hex(key.into());
    }
    fn cap(line: &mut Line, cap: QpCap) {
        format_cap(line, &cap);
    }
    fn path(line: &mut Line, path: AhAttr) {
        format_path(line, &path);
    }
    line.object(|line| {
        members! { line,
            mask::STATE => qp_state: state;
            mask::CUR_STATE => cur_qp_state: state;
            mask::PKEY_INDEX => pkey_index: number;
            mask::PORT => port_num: number;
            mask::ACCESS_FLAGS => qp_access_flags: access;
            mask::QKEY => qkey: key;
            mask::PATH_MTU => path_mtu: format_mtu;
            mask::DEST_QPN => dest_qp_num: Line::qpn;
            mask::RQ_PSN => rq_psn: key;
            mask::AV => ah_attr: path;
            mask::MAX_DEST_RD_ATOMIC => max_dest_rd_atomic: number;
            mask::MIN_RNR_TIMER => min_rnr_timer: number;
            mask::SQ_PSN => sq_psn: key;
            mask::TIMEOUT => timeout: number;
            mask::RETRY_CNT => retry_cnt: number;
            mask::RNR_RETRY => rnr_retry: number;
            mask::MAX_QP_RD_ATOMIC => max_rd_atomic: number;
            mask::CAP => cap: cap;
            mask::EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify: number;
        }
    });
}

/// The common part of both functions that create a queue pair.
macro_rules! format_init {
    ($line:ident, $hint:ident, $attr:ident) => {{
        $line.key("qp_type").word_or_number(names::qp_type($attr.qp_type), $attr.qp_type);
        // SAFETY: contract of `Argument::format`: the structure's queues are null or live.
        unsafe {
            $attr.send_cq.format($line.key("send_cq"), $hint);
            $attr.recv_cq.format($line.key("recv_cq"), $hint);
            if !$attr.srq.is_null() {
                $attr.srq.format($line.key("srq"), $hint);
            }
        }
        format_cap($line.key("cap"), &$attr.cap);
        $line.key("sq_sig_all").number($attr.sq_sig_all);
    }};
}

fn format_srq_attr(line: &mut Line, attr: &SrqAttr) {
    line.object(|line| {
        line.numbers([("max_wr", attr.max_wr), ("max_sge", attr.max_sge), ("srq_limit", attr.srq_limit)]);
    });
}

// Structures, formatted as objects or otherwise.
variables! {
    QpAttr as |attr, line, hint| {
        // ibv_query_qp fills all members, but only those in the mask are formatted, because the program requested
        // them.
        let is_wish = hint.call == "rdma_init_qp_attr";
        format_qp_attr(line, attr, if is_wish { mask::STATE } else { hint.others.mask });
    };
    QpInitAttr as |attr, line, hint| {
        if hint.phase == Phase::Granted {
            format_cap(line, &attr.cap);
        } else {
            line.object(|line| format_init!(line, hint, attr));
        }
    };
    QpInitAttrEx as |attr, line, hint| {
        if hint.phase == Phase::Granted {
            format_cap(line, &attr.cap);
        } else {
            line.object(|line| {
                format_init!(line, hint, attr);
                line.key("comp_mask").hex(attr.comp_mask.into());
                line.key("send_ops_flags").hex(attr.send_ops_flags);
            });
        }
    };
    CqInitAttrEx as |attr, line, hint| line.object(|line| {
        line.key("cqe").number(attr.cqe);
        // SAFETY: contract of `Argument::format`: the structure's channel is null or live.
        unsafe { attr.channel.format(line.key("channel"), hint) };
        line.key("wc_flags").hex(attr.wc_flags);
    });
    SrqInitAttr as |attr, line, _hint| format_srq_attr(line, &attr.attr);
    SrqInitAttrEx as |attr, line, _hint| format_srq_attr(line, &attr.attr);
    SrqAttr as |attr, line, _hint| format_srq_attr(line, attr);
    AhAttr as |attr, line, _hint| format_path(line, attr);
    DeviceAttr as |attr, line, _hint| line.object(|line| {
        // SAFETY: the library has filled the array with a string that ends with a zero byte.
        line.key("fw_ver").text(&unsafe { CStr::from_ptr(attr.fw_ver.as_ptr()) }.to_string_lossy());
        line.numbers([
            ("max_qp", attr.max_qp),
            ("max_qp_wr", attr.max_qp_wr),
            ("max_sge", attr.max_sge),
            ("max_cq", attr.max_cq),
            ("max_cqe", attr.max_cqe),
            ("max_mr", attr.max_mr),
        ]);
    });
    PortAttr as |attr, line, _hint| line.object(|line| {
        line.key("state").word_or_number(names::port_state(attr.state as u32), attr.state);
        format_mtu(line.key("active_mtu"), attr.active_mtu as u32);
        line.key("lid").number(attr.lid);
        line.key("gid_tbl_len").number(attr.gid_tbl_len);
    });
    GidEntry as |entry, line, _hint| line.object(|line| {
        line.key("gid").gid(entry.gid);
        line.key("index").number(entry.gid_index);
        line.key("type").word(match entry.gid_type {
            1 => "ROCE_V1",
            2 => "ROCE_V2",
            _ => "IB",
        });
    });
    AsyncEvent as |event, line, _hint| format_event(line, event);
    Wc as |wc, line, _hint| crate::work::completion(line, wc);
}

fn format_event(line: &mut Line, event: &AsyncEvent) {
    line.object(|line| {
        line.key("event").word_or_number(names::event(event.event_type as u32), event.event_type);
        // SAFETY: the element has the type that the event's type implies, and is live until the event is acknowledged.
        unsafe {
            match event_of(event.event_type) {
                Some((_, Element::Qp)) => line.key("qp").qpn((*event.element.cast::<Qp>()).qp_num),
                Some((_, Element::Srq)) => line.key("srq").number((*event.element.cast::<Srq>()).handle),
                _ => {}
            }
        }
    });
}
