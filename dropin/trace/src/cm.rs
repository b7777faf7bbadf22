//! Formatting of identifiers, addresses and events of the connection manager.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr;

use farcall_layout::rdmacm::{AddrInfo, CmEvent, CmId, ConnParam, UdParam, event};
use libc::sockaddr;

use crate::argument::{Argument, Hint, Phase, variables};
use crate::attributes::format_path;
use crate::line::Line;
use crate::{cm_names, names};

/// Returns the name of a number that only the connection manager's functions take.
pub(crate) fn word_of(hint: &Hint, number: i64) -> Option<&'static str> {
    match (hint.call, hint.name) {
        ("rdma_create_id", "ps") => cm_names::port_space(number),
        ("rdma_set_option", "level") => cm_names::option_level(number),
        ("rdma_set_option", "optname") => cm_names::option(hint.others.level, number),
        ("rdma_notify", "event") => names::event(u32::try_from(number).ok()?),
        _ => None,
    }
}

/// Returns whether an untyped pointer is dereferenced: it points to `len_bytes` bytes.
pub(crate) fn is_read(call: &str, argument: &str) -> bool {
    matches!(
        (call, argument),
        ("rdma_set_option", "value") | ("rdma_reject" | "rdma_reject_ece", "private_data")
    )
}

/// Formats an option's value, or private data.
///
/// # Safety
/// `value` must point to the call's `len_bytes` bytes.
pub(crate) unsafe fn format_value(line: &mut Line, value: *const c_void, hint: &Hint) {
    let len_bytes = hint.others.len_bytes;
    // SAFETY: contract of this function: `value` has `len_bytes` bytes.
    unsafe {
        match (hint.name, len_bytes) {
            ("value", 1) => line.number(value.cast::<u8>().read()),
            ("value", 4) => line.number(value.cast::<c_int>().read_unaligned()),
            _ => format_bytes(line, value, len_bytes),
        }
    }
}

/// The first bytes in hexadecimal, and the number of further bytes.
struct Bytes<'a>(&'a [u8]);

/// Maximum number of bytes shown: enough for a user to recognize the data.
const BYTES_SHOWN: usize = 32;

impl fmt::Display for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(BYTES_SHOWN).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        match self.0.len().saturating_sub(BYTES_SHOWN) {
            0 => Ok(()),
            more => write!(f, "+{more}"),
        }
    }
}

/// # Safety
/// `bytes` must be null, or point to `len_bytes` bytes.
unsafe fn format_bytes(line: &mut Line, bytes: *const c_void, len_bytes: usize) {
    if bytes.is_null() {
        line.null();
    } else {
        // SAFETY: contract of this function: `bytes`, which is not null, has `len_bytes` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len_bytes) };
        line.word_fmt(format_args!("{}", Bytes(bytes)));
    }
}

/// # Safety
/// `address` must be null, or have the length of its family.
unsafe fn format_address(line: &mut Line, address: *const sockaddr) {
    if address.is_null() {
        return line.null();
    }
    // SAFETY: contract of this function: `address`, which is not null, has the length of its family.
    let address: SocketAddr = unsafe {
        match c_int::from((*address).sa_family) {
            libc::AF_INET => {
                let found = address.cast::<libc::sockaddr_in>().read_unaligned();
                (Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr)), u16::from_be(found.sin_port)).into()
            }
            libc::AF_INET6 => {
                let found = address.cast::<libc::sockaddr_in6>().read_unaligned();
                (Ipv6Addr::from(found.sin6_addr.s6_addr), u16::from_be(found.sin6_port)).into()
            }
            family => return line.word_fmt(format_args!("family {family}")),
        }
    };
    line.word_fmt(format_args!("{address}"));
}

impl Argument for *mut sockaddr {
    unsafe fn format(self, line: &mut Line, _hint: &Hint) {
        // SAFETY: contract of `Argument::format`: the pointer is null or points to a complete address.
        unsafe { format_address(line, self) }
    }
}

impl Argument for *mut CmId {
    unsafe fn format(self, line: &mut Line, hint: &Hint) {
        // SAFETY: contract of `Argument::format`: the pointer is null or points to a live identifier.
        match unsafe { self.as_ref() } {
            None => line.null(),
            // SAFETY: contract of `Argument::format`: the objects of a live identifier are live.
            Some(id) if hint.phase == Phase::Granted => unsafe { format_id(line, id, hint) },
            Some(_) => line.hex(self.addr() as u64),
        }
    }
}

/// Formats the values that a call has set in an identifier.
///
/// # Safety
/// The identifier's objects must be live.
unsafe fn format_id(line: &mut Line, id: &CmId, hint: &Hint) {
    let is_address = matches!(hint.call, "rdma_bind_addr" | "rdma_listen");
    line.object(|line| {
        // SAFETY: contract of this function: the identifier's objects are null or live.
        unsafe {
            if is_address {
                format_address(line.key("src_addr"), (&raw const id.route.addr.src_storage).cast());
                return;
            }
            for (name, cq) in [("send_cq", id.send_cq), ("recv_cq", id.recv_cq)] {
                if !cq.is_null() {
                    cq.format(line.key(name), hint);
                }
            }
            if !id.srq.is_null() {
                id.srq.format(line.key("srq"), hint);
            }
            if !id.qp.is_null() {
                id.qp.format(line.key("qp"), hint);
            }
        }
    });
}

fn format_info(line: &mut Line, info: &AddrInfo) {
    line.object(|line| {
        if info.ai_flags != 0 {
            line.key("flags").flags(u64::from(info.ai_flags as u32), &cm_names::ADDR_FLAGS);
        }
        if info.ai_qp_type != 0 {
            line.key("qp_type").word_or_number(names::qp_type(info.ai_qp_type as u32), info.ai_qp_type);
        }
        if info.ai_port_space != 0 {
            line.key("port_space")
                .word_or_number(cm_names::port_space(info.ai_port_space.into()), info.ai_port_space);
        }
        for (name, len, address) in
            [("src_addr", info.ai_src_len, info.ai_src_addr), ("dst_addr", info.ai_dst_len, info.ai_dst_addr)]
        {
            if len > 0 {
                // SAFETY: the program or the library has stored the address, and its length is greater than zero, so
                // it is complete.
                unsafe { format_address(line.key(name), address) };
            }
        }
    });
}

impl Argument for *const AddrInfo {
    unsafe fn format(self, line: &mut Line, hint: &Hint) {
        // SAFETY: contract of `Argument::format`, which is the same for the mutable pointer.
        unsafe { self.cast_mut().format(line, hint) }
    }
}

fn format_event(line: &mut Line, of: &CmEvent, hint: &Hint) {
    line.object(|line| {
        line.key("event").word_or_number(cm_names::event(of.event), of.event);
        for (name, id) in [("id", of.id), ("listen_id", of.listen_id)] {
            if !id.is_null() {
                line.key(name).hex(id.addr() as u64);
            }
        }
        // SAFETY: the identifier is live until the event is acknowledged.
        let is_datagram = !of.id.is_null() && cm_names::is_datagram(unsafe { (*of.id).ps });
        if of.status != 0 {
            format_status(line.key("status"), of, is_datagram);
        }
        if hint.phase == Phase::Given {
            return;
        }
        if matches!(of.event, event::ADDR_RESOLVED | event::CONNECT_REQUEST) && !of.id.is_null() {
            // SAFETY: the identifier is live until the event is acknowledged.
            let between = unsafe { &(*of.id).route.addr };
            for (name, address) in [("src_addr", &between.src_storage), ("dst_addr", &between.dst_storage)] {
                // SAFETY: the storage has the length of any family's address.
                unsafe { format_address(line.key(name), ptr::from_ref(address).cast()) };
            }
        }
        let says = matches!(
            of.event,
            event::CONNECT_REQUEST | event::CONNECT_RESPONSE | event::ESTABLISHED | event::REJECTED
        );
        if !says {
            return;
        }
        // SAFETY: the port space determines which member of the union the library has filled.
        unsafe {
            if is_datagram {
                format_datagrams(line.key("ud"), &of.param.ud);
            } else {
                format_connection(line.key("conn"), &of.param.conn);
            }
        }
    });
}

/// Formats a negative error number, or the peer's reason.
fn format_status(line: &mut Line, of: &CmEvent, is_datagram: bool) {
    match of.status {
        status if status < 0 => match names::errno(-status) {
            Some(name) => line.word_fmt(format_args!("-{name}")),
            None => line.number(status),
        },
        status if is_datagram => line.word_or_number(cm_names::service_status(status), status),
        status => line.word_or_number(cm_names::rejection(status), status),
    }
}

/// Formats the private data of an event or of a call's parameters, if there is any.
fn format_private_data(line: &mut Line, bytes: *const c_void, len_bytes: u8) {
    if len_bytes > 0 {
        // SAFETY: the structure contains the length of its private data.
        unsafe { format_bytes(line.key("private_data"), bytes, len_bytes.into()) };
    }
}

fn format_connection(line: &mut Line, param: &ConnParam) {
    line.object(|line| {
        line.numbers([
            ("responder_resources", param.responder_resources),
            ("initiator_depth", param.initiator_depth),
            ("flow_control", param.flow_control),
            ("retry_count", param.retry_count),
            ("rnr_retry_count", param.rnr_retry_count),
            ("srq", param.srq),
        ]);
        line.key("qp_num").qpn(param.qp_num);
        format_private_data(line, param.private_data, param.private_data_len);
    });
}

fn format_datagrams(line: &mut Line, param: &UdParam) {
    line.object(|line| {
        line.key("qp_num").qpn(param.qp_num);
        line.key("qkey").hex(param.qkey.into());
        format_path(line.key("ah_attr"), &param.ah_attr);
        format_private_data(line, param.private_data, param.private_data_len);
    });
}

variables! {
    // SAFETY: the function has stored a live identifier in the variable.
    *mut CmId as |id, line, hint| unsafe { id.format(line, hint) };
    AddrInfo as |info, line, _hint| format_info(line, info);
    // SAFETY: the function has stored the address information that it found in the variable.
    *mut AddrInfo as |first, line, hint| unsafe { first.format(line, hint) };
    CmEvent as |of, line, hint| format_event(line, of, hint);
    // SAFETY: the function has stored an event that is not acknowledged in the variable.
    *mut CmEvent as |of, line, hint| unsafe { of.format(line, hint) };
    ConnParam as |param, line, _hint| format_connection(line, param);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::argument::OtherArguments;
    use crate::line::Format;

    fn text(fill: impl FnOnce(&mut Line)) -> String {
        let mut line = Line::new(Format::Text);
        fill(&mut line);
        String::from_utf8(line.bytes().to_vec()).unwrap()
    }

    fn hint(call: &'static str, name: &'static str, others: OtherArguments) -> Hint {
        Hint { call, name, others, phase: Phase::Given }
    }

    #[test]
    fn private_data_is_shown_and_cut() {
        assert_eq!(Bytes(&[0, 0x1f, 0xff]).to_string(), "001fff");
        assert_eq!(Bytes(&[1; 40]).to_string(), "01".repeat(32) + "+8");
        let others = OtherArguments { len_bytes: 2, ..OtherArguments::default() };
        let bytes = [0xab_u8, 0xcd];
        // SAFETY: `bytes` has two bytes, as `len_bytes` states.
        let output = text(|line| unsafe {
            bytes.as_ptr().cast::<c_void>().format(line, &hint("rdma_reject", "private_data", others));
        });
        assert_eq!(output, "abcd");
    }

    #[test]
    fn options_have_words_and_values() {
        let others = OtherArguments { level: 0, len_bytes: 4, mask: 0 };
        let mut value: c_int = 1;
        // SAFETY: `value` has four bytes, as `len_bytes` states.
        let output = text(|line| unsafe {
            1_i32.format(line, &hint("rdma_set_option", "optname", others));
            line.raw(format_args!(" "));
            (&raw mut value).cast::<c_void>().format(line, &hint("rdma_set_option", "value", others));
        });
        assert_eq!(output, "REUSEADDR 1");
    }

    #[test]
    fn addresses_of_every_family() {
        // SAFETY: a structure of integers, for which zero is valid.
        let mut v6: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        v6.sin6_family = libc::AF_INET6 as u16;
        v6.sin6_port = 7174_u16.to_be();
        v6.sin6_addr.s6_addr = Ipv6Addr::LOCALHOST.octets();
        // SAFETY: `v6` has the length of its family.
        assert_eq!(text(|line| unsafe { format_address(line, (&raw const v6).cast()) }), "[::1]:7174");
        v6.sin6_family = 27;
        // SAFETY: `v6` is longer than the family field, and nothing else is read for an unknown family.
        assert_eq!(text(|line| unsafe { format_address(line, (&raw const v6).cast()) }), "family 27");
        // SAFETY: `format_address` accepts null.
        assert_eq!(text(|line| unsafe { format_address(line, std::ptr::null()) }), "NULL");
    }

    #[test]
    fn an_event_says_what_happened_and_why() {
        // SAFETY: structures of integers and pointers, for which zero is valid.
        let (mut id, mut of): (CmId, CmEvent) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        id.ps = 0x106;
        let data = [7_u8];
        (of.id, of.event, of.status) = (&raw mut id, event::REJECTED, 28);
        of.param = farcall_layout::rdmacm::Param {
            conn: ConnParam {
                private_data: data.as_ptr().cast(),
                private_data_len: 1,
                ..ConnParam::default()
            },
        };
        let filled =
            Hint { phase: Phase::Filled, ..hint("rdma_get_cm_event", "event", OtherArguments::default()) };
        // SAFETY: `of` is a complete event, and its identifier `id` is live.
        let output = text(|line| unsafe { (&raw mut of).format(line, &filled) });
        assert!(
            output.starts_with("{event=REJECTED, id=0x") && output.ends_with(", private_data=07}}"),
            "{output}"
        );
        assert!(output.contains(", status=CONSUMER_REJECT, conn={responder_resources=0,"), "{output}");
        (of.event, of.status) = (event::UNREACHABLE, -libc::ETIMEDOUT);
        // SAFETY: `of` is a complete event, and its identifier `id` is live.
        let output = text(|line| unsafe { (&raw mut of).format(line, &filled) });
        assert!(output.ends_with(", status=-ETIMEDOUT}"), "{output}");
    }
}
