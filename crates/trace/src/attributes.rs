//! Structures that programs fill in or have filled.

use std::ffi::CStr;

use farcall_ibv::abi::whole::{
    AhAttr, AsyncEvent, CqInitAttrEx, DeviceAttr, GidEntry, PortAttr, Qp, QpAttr, QpCap, QpInitAttr,
    QpInitAttrEx, Srq, SrqAttr, SrqInitAttr, SrqInitAttrEx, mask,
};
use farcall_verbs::Wc;

use crate::argument::{Argument, Hint, Phase, show_gid, variables};
use crate::line::Line;
use crate::names;

/// A word if the number has one.
pub(crate) fn word_or_number(line: &mut Line, word: Option<&str>, number: impl std::fmt::Display) {
    match word {
        Some(word) => line.word(word),
        None => line.number(number),
    }
}

fn show_mtu(line: &mut Line, mtu: u32) {
    match names::mtu_bytes(mtu) {
        Some(bytes) => line.number(bytes),
        None => line.word_fmt(format_args!("ibv_mtu({mtu})")),
    }
}

fn show_cap(line: &mut Line, cap: &QpCap) {
    line.object(|line| {
        let members = [
            ("max_send_wr", cap.max_send_wr),
            ("max_recv_wr", cap.max_recv_wr),
            ("max_send_sge", cap.max_send_sge),
            ("max_recv_sge", cap.max_recv_sge),
            ("max_inline_data", cap.max_inline_data),
        ];
        for (name, value) in members {
            line.key(name);
            line.number(value);
        }
    });
}

pub(crate) fn show_path(line: &mut Line, path: &AhAttr) {
    line.object(|line| {
        if path.is_global != 0 {
            line.key("dgid");
            show_gid(path.grh.dgid, line);
            line.key("sgid_index");
            line.number(path.grh.sgid_index);
        }
        if path.is_global == 0 || path.dlid != 0 {
            line.key("dlid");
            line.number(path.dlid);
        }
        if path.sl != 0 {
            line.key("sl");
            line.number(path.sl);
        }
        line.key("port_num");
        line.number(path.port_num);
    });
}

/// `IBV_QP_CAP`, which nothing here changes.
const CAP: i32 = 1 << 19;

/// The members of a queue pair's attributes that a mask names.
fn show_qp_attr(line: &mut Line, attr: &QpAttr, attr_mask: i32) {
    macro_rules! members {
        ($line:ident, $($bit:expr => $name:ident: $show:expr;)*) => {
            $(if attr_mask & $bit != 0 {
                $line.key(stringify!($name));
                $show($line, attr.$name);
            })*
        };
    }
    fn number(line: &mut Line, value: impl Into<u64>) {
        line.number(value.into());
    }
    fn state(line: &mut Line, state: u32) {
        word_or_number(line, names::qp_state(state), state);
    }
    fn access(line: &mut Line, flags: u32) {
        line.flags(flags.into(), &names::ACCESS);
    }
    fn key(line: &mut Line, key: u32) {
        line.hex(key.into());
    }
    fn cap(line: &mut Line, cap: QpCap) {
        show_cap(line, &cap);
    }
    fn path(line: &mut Line, path: AhAttr) {
        show_path(line, &path);
    }
    line.object(|line| {
        members! { line,
            mask::STATE => qp_state: state;
            mask::CUR_STATE => cur_qp_state: state;
            mask::PKEY_INDEX => pkey_index: number;
            mask::PORT => port_num: number;
            mask::ACCESS_FLAGS => qp_access_flags: access;
            mask::QKEY => qkey: key;
            mask::PATH_MTU => path_mtu: show_mtu;
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
            CAP => cap: cap;
            mask::EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify: number;
        }
    });
}

/// What both ways to make a queue pair have in common.
macro_rules! show_init {
    ($line:ident, $hint:ident, $attr:ident) => {{
        $line.key("qp_type");
        word_or_number($line, names::qp_type($attr.qp_type), $attr.qp_type);
        // SAFETY: the program's queues, or null.
        unsafe {
            $line.key("send_cq");
            $attr.send_cq.show($line, $hint);
            $line.key("recv_cq");
            $attr.recv_cq.show($line, $hint);
            if !$attr.srq.is_null() {
                $line.key("srq");
                $attr.srq.show($line, $hint);
            }
        }
        $line.key("cap");
        show_cap($line, &$attr.cap);
        $line.key("sq_sig_all");
        $line.number($attr.sq_sig_all);
    }};
}

fn show_srq_attr(line: &mut Line, attr: &SrqAttr) {
    line.object(|line| {
        for (name, value) in
            [("max_wr", attr.max_wr), ("max_sge", attr.max_sge), ("srq_limit", attr.srq_limit)]
        {
            line.key(name);
            line.number(value);
        }
    });
}

// Structures, each shown as an object or in another form.
variables! {
    QpAttr as |attr, line, hint| {
        // ibv_query_qp fills everything, whatever was asked for; it is asked for by a mask all the same.
        let is_wish = hint.call == "rdma_init_qp_attr";
        show_qp_attr(line, attr, if is_wish { mask::STATE } else { hint.beside.mask });
    };
    QpInitAttr as |attr, line, hint| {
        if hint.phase == Phase::Granted {
            show_cap(line, &attr.cap);
        } else {
            line.object(|line| show_init!(line, hint, attr));
        }
    };
    QpInitAttrEx as |attr, line, hint| {
        if hint.phase == Phase::Granted {
            show_cap(line, &attr.cap);
        } else {
            line.object(|line| {
                show_init!(line, hint, attr);
                line.key("comp_mask");
                line.hex(attr.comp_mask.into());
                line.key("send_ops_flags");
                line.hex(attr.send_ops_flags);
            });
        }
    };
    CqInitAttrEx as |attr, line, hint| line.object(|line| {
        line.key("cqe");
        line.number(attr.cqe);
        line.key("channel");
        // SAFETY: the program's channel, or null.
        unsafe { attr.channel.show(line, hint) };
        line.key("wc_flags");
        line.hex(attr.wc_flags);
    });
    SrqInitAttr as |attr, line, _hint| show_srq_attr(line, &attr.attr);
    SrqInitAttrEx as |attr, line, _hint| show_srq_attr(line, &attr.attr);
    SrqAttr as |attr, line, _hint| show_srq_attr(line, attr);
    AhAttr as |attr, line, _hint| show_path(line, attr);
    DeviceAttr as |attr, line, _hint| line.object(|line| {
        line.key("fw_ver");
        // SAFETY: an array that the library filled and ended with a zero.
        line.text(&unsafe { CStr::from_ptr(attr.fw_ver.as_ptr()) }.to_string_lossy());
        for (name, value) in [
            ("max_qp", attr.max_qp),
            ("max_qp_wr", attr.max_qp_wr),
            ("max_sge", attr.max_sge),
            ("max_cq", attr.max_cq),
            ("max_cqe", attr.max_cqe),
            ("max_mr", attr.max_mr),
        ] {
            line.key(name);
            line.number(value);
        }
    });
    PortAttr as |attr, line, _hint| line.object(|line| {
        line.key("state");
        word_or_number(line, names::port_state(attr.state as u32), attr.state);
        line.key("active_mtu");
        show_mtu(line, attr.active_mtu as u32);
        line.key("lid");
        line.number(attr.lid);
        line.key("gid_tbl_len");
        line.number(attr.gid_tbl_len);
    });
    GidEntry as |entry, line, _hint| line.object(|line| {
        let [high, low] = entry.gid.map(u64::to_ne_bytes);
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&high);
        gid[8..].copy_from_slice(&low);
        line.key("gid");
        show_gid(gid, line);
        line.key("index");
        line.number(entry.gid_index);
        line.key("type");
        line.word(match entry.gid_type {
            1 => "ROCE_V1",
            2 => "ROCE_V2",
            _ => "IB",
        });
    });
    AsyncEvent as |event, line, _hint| show_event(line, event);
    Wc as |wc, line, _hint| crate::work::completion(line, wc);
}

/// `IBV_EVENT_…` that are about a queue pair, and a shared receive queue.
const ABOUT_QP: [i32; 6] = [1, 2, 3, 4, 5, 16];
const ABOUT_SRQ: [i32; 2] = [14, 15];

fn show_event(line: &mut Line, event: &AsyncEvent) {
    line.object(|line| {
        line.key("event");
        word_or_number(line, names::event(event.event_type as u32), event.event_type);
        // SAFETY: the object that the event's type says, alive until the event is acknowledged.
        unsafe {
            if ABOUT_QP.contains(&event.event_type) {
                line.key("qp");
                line.qpn((*event.element.cast::<Qp>()).qp_num);
            } else if ABOUT_SRQ.contains(&event.event_type) {
                line.key("srq");
                line.number((*event.element.cast::<Srq>()).handle);
            }
        }
    });
}
