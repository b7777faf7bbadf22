//! Work requests and completions.

use farcall_verbs::{RecvWr, SendFlags, SendWr, Sge, Wc, WcFlags, WrOpcode};

use crate::line::Line;
use crate::names;

fn elements(line: &mut Line, sges: &[Sge], has_keys: bool) {
    line.key("sge").list(sges, |line, sge| {
        line.object(|line| {
            line.key("addr").hex(sge.addr);
            line.key("length").number(sge.length);
            if has_keys {
                line.key("lkey").hex(sge.lkey.into());
            }
        });
    });
}

/// Formats a send request, with its destination on a datagram queue pair.
pub fn request(line: &mut Line, request: &SendWr<'_>, is_datagram: bool) {
    line.object(|line| {
        line.key("wr_id").hex(request.wr_id);
        line.key("opcode").word_or_number(names::wr_opcode(request.opcode), request.opcode.0);
        line.key("flags").flags(request.send_flags.bits().into(), &names::SEND_FLAGS);
        match request.opcode {
            WrOpcode::WRITE | WrOpcode::WRITE_WITH_IMM | WrOpcode::READ => {
                target(line, request.rdma().remote_addr, request.rdma().rkey);
            }
            WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD => {
                let atomic = request.atomic_target();
                target(line, atomic.remote_addr, atomic.rkey);
                line.key("compare_add").hex(atomic.compare_add);
                line.key("swap").hex(atomic.swap);
            }
            _ if is_datagram => {
                line.key("remote_qpn").qpn(request.ud().remote_qpn);
                line.key("remote_qkey").hex(request.ud().remote_qkey.into());
            }
            _ => {}
        }
        if matches!(request.opcode, WrOpcode::SEND_WITH_IMM | WrOpcode::WRITE_WITH_IMM) {
            line.key("imm").hex(u32::from_be(request.imm_data_be).into());
        }
        elements(line, request.sges(), !request.send_flags.contains(SendFlags::INLINE));
    });
}

fn target(line: &mut Line, remote_addr: u64, rkey: u32) {
    line.key("remote_addr").hex(remote_addr);
    line.key("rkey").hex(rkey.into());
}

/// Formats a chain of send requests.
///
/// # Safety
/// `first` must be null, or a chain as required by `man ibv_post_send`.
pub unsafe fn requests(line: &mut Line, first: *const SendWr<'_>, is_datagram: bool) {
    let mut next = first;
    let chain = std::iter::from_fn(|| {
        // SAFETY: contract of this function: each element of the chain is valid, and the last one's `next` is null.
        let found = unsafe { next.as_ref() }?;
        next = found.next.cast();
        Some(found)
    });
    line.list(chain, |line, found| request(line, found, is_datagram));
}

/// Formats a chain of receives.
///
/// # Safety
/// `first` must be null, or a chain as required by `man ibv_post_recv`.
pub unsafe fn receives(line: &mut Line, first: *const RecvWr<'_>) {
    let mut next = first;
    let chain = std::iter::from_fn(|| {
        // SAFETY: contract of this function: each element of the chain is valid, and the last one's `next` is null.
        let found = unsafe { next.as_ref() }?;
        next = found.next.cast();
        Some(found)
    });
    line.list(chain, |line, found| {
        line.object(|line| {
            line.key("wr_id").hex(found.wr_id);
            elements(line, found.sges(), true);
        });
    });
}

/// Formats a completion. If it failed, only the fields that the specification declares valid.
pub fn completion(line: &mut Line, wc: &Wc) {
    line.object(|line| {
        line.key("wr_id").hex(wc.wr_id);
        line.key("status").word(wc.status.name());
        if wc.status.name() == "UNKNOWN" {
            line.key("status_code").number(wc.status.0);
        }
        if wc.status.is_success() {
            line.key("opcode").word_or_number(names::wc_opcode(wc.opcode), wc.opcode.0);
            if wc.opcode.is_receive() || wc.byte_len > 0 {
                line.key("byte_len").number(wc.byte_len);
            }
            if wc.wc_flags != WcFlags::empty() {
                line.key("wc_flags").flags(wc.wc_flags.bits().into(), &names::WC_FLAGS);
            }
            if let Some(imm) = wc.imm() {
                line.key("imm").hex(imm.into());
            }
            if wc.wc_flags.contains(WcFlags::GRH) {
                line.key("src_qp").qpn(wc.src_qp);
            }
        } else if wc.vendor_err != 0 {
            line.key("vendor_err").hex(wc.vendor_err.into());
        }
        line.key("qp").qpn(wc.qp_num);
    });
}

/// Formats the completions that a poll returned.
pub fn completions(line: &mut Line, wcs: &[Wc]) {
    line.list(wcs, completion);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Format;
    use farcall_verbs::{AtomicTarget, UdTarget, WcOpcode, WcStatus};

    fn text(fill: impl FnOnce(&mut Line)) -> String {
        let mut line = Line::new(Format::Text);
        fill(&mut line);
        String::from_utf8(line.bytes().to_vec()).unwrap()
    }

    #[test]
    fn requests_show_what_their_opcode_has() {
        let sges = [Sge { addr: 0x1000, length: 64, lkey: 7 }];
        let write = SendWr::write(1, &sges, 0x2000, 9).with_imm(5).with_flags(SendFlags::SIGNALED);
        assert_eq!(
            text(|line| request(line, &write, false)),
            "{wr_id=0x1, opcode=RDMA_WRITE_WITH_IMM, flags=SIGNALED, remote_addr=0x2000, rkey=0x9, imm=0x5, \
             sge=[{addr=0x1000, length=64, lkey=0x7}]}"
        );
        let atomic = AtomicTarget { remote_addr: 8, compare_add: 3, swap: 4, rkey: 2 };
        let output = text(|line| {
            request(line, &SendWr::atomic(WrOpcode::ATOMIC_CMP_AND_SWP, 1, &sges, atomic), false);
        });
        assert!(
            output.contains("ATOMIC_CMP_AND_SWP") && output.contains("compare_add=0x3, swap=0x4"),
            "{output}"
        );
        let to = UdTarget { ah: std::ptr::null(), remote_qpn: 0x11, remote_qkey: 0x22 };
        let datagram = SendWr::send_to(1, &sges, to).with_flags(SendFlags::INLINE);
        let output = text(|line| request(line, &datagram, true));
        assert!(output.contains("remote_qpn=0x000011, remote_qkey=0x22"), "{output}");
        assert!(output.contains("INLINE") && !output.contains("lkey"), "{output}");
    }

    #[test]
    fn chains_are_shown_to_their_end() {
        let second = SendWr::send(2, &[]);
        let mut first = SendWr::send(1, &[]);
        first.next = &raw const second;
        // SAFETY: a chain of two requests that are live.
        let output = text(|line| unsafe { requests(line, &raw const first, false) });
        assert!(output.starts_with("[{wr_id=0x1,") && output.contains("{wr_id=0x2,"), "{output}");
        // SAFETY: null is an empty chain.
        assert_eq!(text(|line| unsafe { receives(line, std::ptr::null()) }), "[]");
    }

    #[test]
    fn a_failed_completion_shows_what_is_valid_of_it() {
        let mut wc = Wc::ended(3, 0x2a, WcOpcode::RECV, WcStatus::RNR_RETRY_EXC_ERR);
        assert_eq!(text(|line| completion(line, &wc)), "{wr_id=0x3, status=RNR_RETRY_EXC_ERR, qp=0x00002a}");
        wc.status = WcStatus::SUCCESS;
        wc.byte_len = 12;
        assert_eq!(
            text(|line| completion(line, &wc)),
            "{wr_id=0x3, status=SUCCESS, opcode=RECV, byte_len=12, qp=0x00002a}"
        );
    }
}
