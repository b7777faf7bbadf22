//! Unsupported features are refused: each function with the errno of its man page or of the header, and no unknown
//! flag or mask is silently accepted.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use farcall_layout::{
    AhAttr, Context, ContextOps, Cq, CqInitAttrEx, DeviceAttr, Mr, Pd, Qp, QpAttr, QpInitAttr, QpInitAttrEx,
    SrqInitAttr, SrqInitAttrEx, Values, VerbsContext, mask,
};
use farcall_verbs::{RecvWr, SendFlags, SendWr};
use libc::{EINVAL, ENOENT, EOPNOTSUPP};

use crate::library::{Library, clear_errno, device, errno, inline, zeroed};

/// An opened device with a domain and a completion queue.
pub struct Opened {
    pub library: &'static Library,
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub cq: *mut Cq,
}

impl Opened {
    pub fn new() -> Self {
        let library = Library::get();
        // SAFETY: as the man pages show it.
        unsafe {
            let context = (library.open_device)(device());
            let pd = (library.alloc_pd)(context);
            let cq = (library.create_cq)(context, 8, ptr::null_mut(), ptr::null_mut(), 0);
            assert!(!context.is_null() && !pd.is_null() && !cq.is_null());
            Self { library, context, pd, cq }
        }
    }

    pub fn tables(&self) -> *mut VerbsContext {
        // SAFETY: an open context.
        unsafe { inline::extended(self.context) }
    }

    pub fn pair(&self, extended: impl FnOnce(&mut QpInitAttrEx)) -> *mut Qp {
        // SAFETY: zero is valid for every field.
        let mut attr: QpInitAttrEx = unsafe { zeroed() };
        (attr.send_cq, attr.recv_cq, attr.qp_type, attr.pd, attr.comp_mask) =
            (self.cq, self.cq, 2, self.pd, 1);
        (attr.cap.max_send_wr, attr.cap.max_recv_wr, attr.cap.max_send_sge) = (4, 4, 1);
        extended(&mut attr);
        clear_errno();
        // SAFETY: live objects, a complete structure.
        unsafe { inline::create_qp_ex(self.context, &raw mut attr) }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: nothing was made of them that is left.
        unsafe {
            assert_eq!((self.library.destroy_cq)(self.cq), 0);
            assert_eq!((self.library.dealloc_pd)(self.pd), 0);
            assert_eq!((self.library.close_device)(self.context), 0);
        }
    }
}

/// The header's inline functions check for null in the tables, and return `EOPNOTSUPP` themselves: memory windows,
/// flows, counters, device memory, parent and thread domains, XRC, work queues, null regions, advice, moderation,
/// packet pacing.
#[test]
fn tables_hold_nothing_for_what_is_not_offered() {
    let opened = Opened::new();
    let tables = opened.tables();
    // SAFETY: an open context's tables.
    unsafe {
        assert!((*tables).before_query_rt_values.iter().all(|slot| slot.is_null()));
        assert!((*tables).flows.iter().all(|slot| slot.is_null()), "flows");
        assert!((*tables).xrc_domains.iter().all(|slot| slot.is_null()), "XRC domains");
        assert!((*tables).open_qp.is_null() && (*tables).get_srq_num.is_null(), "XRC pairs and queues");
        let ops: &ContextOps = &(*tables).context.ops;
        assert!(ops.before_poll_cq.iter().all(|slot| slot.is_null()), "memory windows");
    }
}

/// Functions of the library itself.
#[test]
fn functions_that_are_not_offered_say_so() {
    let opened = Opened::new();
    let (library, context, pd) = (opened.library, opened.context, opened.pd);
    let qp = opened.pair(|_| ());
    let gid = [0xff_u8; 16];
    let mut ece = [0x8086_u32, 1, 0];
    // SAFETY: live objects; handles of kernel objects that there are not.
    unsafe {
        let makers: [(&str, *mut c_void); 9] = [
            ("ibv_import_device", (clear_errno(), (library.ibv_import_device)(3)).1.cast()),
            ("ibv_import_pd", (library.ibv_import_pd)(context, 1)),
            ("ibv_import_mr", (library.ibv_import_mr)(pd.cast(), 1)),
            ("ibv_import_dm", (library.ibv_import_dm)(context, 1)),
            ("ibv_reg_dmabuf_mr", (library.ibv_reg_dmabuf_mr)(pd, 0, 4096, 0, 3, 1).cast()),
            ("ibv_alloc_dmah", (library.ibv_alloc_dmah)(context, ptr::null_mut())),
            ("ibv_reg_mr_ex", (library.ibv_reg_mr_ex)(pd, ptr::null_mut()).cast()),
            ("ibv_alloc_buf", (library.ibv_alloc_buf)(pd, 4096, ptr::null_mut())),
            ("ibv_create_comp_cntr", (library.ibv_create_comp_cntr)(context, ptr::null_mut())),
        ];
        for (name, made) in makers {
            assert!(made.is_null() && errno() == EOPNOTSUPP, "{name}: errno {}", errno());
        }
        clear_errno();
        assert_eq!(((library.ibv_dm_export_dmabuf_fd)(ptr::null_mut()), errno()), (-1, EOPNOTSUPP));
        assert_eq!((library._ibv_query_comp_cntr_caps)(context, ptr::null_mut(), 0), EOPNOTSUPP);
        assert_eq!((library.ibv_attach_mcast)(qp, &raw const gid, 0), EOPNOTSUPP);
        assert_eq!((library.ibv_detach_mcast)(qp, &raw const gid, 0), EOPNOTSUPP);
        assert_eq!((library.ibv_set_ece)(qp, &raw mut ece), EOPNOTSUPP, "a vendor's enhancement");
        assert_eq!(((library.ibv_query_ece)(qp, &raw mut ece), ece), (0, [0; 3]), "there is none");
        assert_eq!((library.ibv_set_ece)(qp, &raw mut ece), 0);
        assert_eq!((library.destroy_qp)(qp), 0);
        let mut srq: SrqInitAttrEx = zeroed();
        (srq.comp_mask, srq.srq_type, srq.pd, srq.attr.max_wr) = (0b11, 1, pd, 4);
        for srq_type in [1, 2, 7] {
            // XRC, tag matching, invalid types.
            srq.srq_type = srq_type;
            clear_errno();
            let made = ((*opened.tables()).create_srq_ex)(context, &raw mut srq);
            assert!(made.is_null() && errno() == EOPNOTSUPP, "type {srq_type}: errno {}", errno());
        }
        let mut values: Values = zeroed();
        values.comp_mask = 1 << 4;
        assert_eq!(((*opened.tables()).query_rt_values)(context, &raw mut values), EOPNOTSUPP);
        // Drivers identify their own devices by name; this device has a different one.
        let name = CStr::from_ptr((library.get_device_name)(device())).to_str().unwrap();
        assert!(!name.starts_with("mlx") && !name.starts_with("efa"), "{name}");
        assert_ne!((library.ibv_get_device_guid)(device()), 0);
    }
}

/// Four lanes of 25 Gb/s, as reported by the codes of `ibv_query_port`.
#[test]
fn reports_the_speed_of_existing_ports_only() {
    let opened = Opened::new();
    let speed = |port_num: u32| {
        let mut speed = 7;
        // SAFETY: an open context, a number to write to.
        let told = unsafe { (opened.library.ibv_query_port_speed)(opened.context, port_num, &raw mut speed) };
        (told, speed)
    };
    assert_eq!(speed(1), (0, 1000), "in units of 100 Mb/s");
    for port_num in [0, 2, 257] {
        assert_eq!(speed(port_num), (EINVAL, 7), "port {port_num}");
    }
}

/// All queries of the GID table return the same. The entry at index 1 is an IPv4 address, with a network device that
/// has it.
#[test]
fn gids_are_the_same_in_every_query() {
    let opened = Opened::new();
    let (library, context) = (opened.library, opened.context);
    // SAFETY: an open context; complete structures, for which zero is a value.
    unsafe {
        let mut port: farcall_layout::PortAttr = zeroed();
        assert_eq!(inline::query_port(context, 1, &raw mut port), 0);
        let mut table: [farcall_layout::GidEntry; 16] = zeroed();
        let entry_bytes = size_of_val(&table[0]);
        let filled = (library._ibv_query_gid_table)(context, table.as_mut_ptr(), 16, 0, entry_bytes);
        assert_eq!(filled, port.gid_tbl_len as isize);
        for (index, entry) in table.iter().enumerate().take(filled as usize) {
            let mut gid = [0; 16];
            assert_eq!((library.query_gid)(context, 1, index as c_int, &raw mut gid), 0);
            let mut alone: farcall_layout::GidEntry = zeroed();
            let asked = library._ibv_query_gid_ex;
            assert_eq!(asked(context, 1, index as u32, &raw mut alone, 0, entry_bytes), 0);
            let of = |entry: &farcall_layout::GidEntry| (entry.gid, entry.gid_type, entry.ndev_ifindex);
            assert_eq!((of(entry), gid), (of(&alone), entry.gid));
            assert_eq!((entry.gid_index, entry.port_num, entry.gid_type), (index as u32, 1, 2));
            // Three entries of the loopback device; then those of the network devices.
            let loopback = libc::if_nametoindex(c"lo".as_ptr());
            assert_eq!(entry.ndev_ifindex == loopback, index < 3, "{index}");
            assert_ne!(entry.ndev_ifindex, 0);
        }
        let v4 = std::net::Ipv6Addr::from(table[1].gid).to_ipv4_mapped().unwrap();
        std::net::UdpSocket::bind((v4, 0)).unwrap();
    }
}

/// Tests every type of queue pair, and every bit of the extended masks and flags.
#[test]
fn unknown_types_masks_and_flags_of_queue_pairs_are_refused() {
    let opened = Opened::new();
    let refused = |what: &str, qp: *mut Qp, number: c_int| {
        assert!(qp.is_null(), "{what} was taken");
        assert_eq!(errno(), number, "{what}");
    };
    for qp_type in (0..64).filter(|qp_type| !(2..=4).contains(qp_type)).chain([0xff, u32::MAX]) {
        refused(&format!("type {qp_type}"), opened.pair(|attr| attr.qp_type = qp_type), EOPNOTSUPP);
    }
    const OFFERED: u32 = 1 | 1 << 2 | 1 << 6;
    for bit in (0..32).filter(|bit| OFFERED & 1 << bit == 0) {
        refused(&format!("mask bit {bit}"), opened.pair(|attr| attr.comp_mask |= 1 << bit), EOPNOTSUPP);
    }
    for bit in 0..32 {
        let flagged = |attr: &mut QpInitAttrEx| (attr.comp_mask, attr.create_flags) = (0b101, 1 << bit);
        refused(&format!("create flag {bit}"), opened.pair(flagged), EOPNOTSUPP);
    }
    for bit in 7..64 {
        let flagged =
            |attr: &mut QpInitAttrEx| (attr.comp_mask, attr.send_ops_flags) = (0b100_0001, 1 << bit);
        refused(&format!("operation {bit}"), opened.pair(flagged), EOPNOTSUPP);
    }
    refused("no domain", opened.pair(|attr| (attr.comp_mask, attr.send_ops_flags) = (1 << 6, 1)), EINVAL);
}

/// Tests every bit of an extended completion queue.
#[test]
fn unknown_masks_and_flags_of_completion_queues_are_refused() {
    let opened = Opened::new();
    let refused = |what: &str, change: &dyn Fn(&mut CqInitAttrEx)| {
        // SAFETY: zero is valid for every field.
        let mut attr: CqInitAttrEx = unsafe { zeroed() };
        (attr.cqe, attr.comp_mask) = (4, 1);
        change(&mut attr);
        clear_errno();
        // SAFETY: an open context, a complete structure.
        let made = unsafe { inline::create_cq_ex(opened.context, &raw mut attr) };
        assert!(made.is_null() && errno() == EOPNOTSUPP, "{what}: errno {}", errno());
    };
    for bit in 1..32 {
        refused(&format!("mask bit {bit}"), &|attr| attr.comp_mask |= 1 << bit);
    }
    for bit in 2..32 {
        refused(&format!("flag {bit}"), &|attr| attr.flags = 1 << bit);
    }
    for bit in [8, 9, 10].into_iter().chain(12..64) {
        refused(&format!("field {bit}"), &|attr| attr.wc_flags = 1 << bit);
    }
}

/// Tests every bit of a region's access, and of a request's flags.
#[test]
fn unknown_access_and_send_flags_are_refused() {
    let opened = Opened::new();
    let mut bytes = [0_u8; 64];
    for bit in [6].into_iter().chain(8..20).chain([30, 31]) {
        clear_errno();
        // SAFETY: a live domain, memory that outlives the region.
        let made: *mut Mr = unsafe {
            (opened.library.ibv_reg_mr_iova2)(
                opened.pd,
                bytes.as_mut_ptr().cast(),
                64,
                bytes.as_ptr() as u64,
                1 | 1 << bit,
            )
        };
        let known = if [6, 8, 9].contains(&bit) { EOPNOTSUPP } else { EINVAL };
        assert!(made.is_null() && errno() == known, "access bit {bit}: errno {}", errno());
    }
    let qp = opened.pair(|_| ());
    // A pair in the error state accepts requests, and flushes them.
    to_error(&opened, qp);
    for bit in 4..32 {
        let mut wr = SendWr::send(1, &[]);
        wr.send_flags = SendFlags::from_bits_retain(1 << bit);
        let mut bad = ptr::null_mut();
        // SAFETY: a live pair, a complete chain.
        let got = unsafe { inline::post_send(qp, &raw mut wr, &raw mut bad) };
        assert!(got == EOPNOTSUPP && ptr::eq(bad, &raw const wr), "flag {bit}: {got}");
        let mut last = SendWr::send(2, &[]);
        last.send_flags = SendFlags::from_bits_retain(1 << bit);
        let mut first = SendWr::send(1, &[]);
        first.next = &raw const last;
        // SAFETY: a live pair, a complete chain.
        let got = unsafe { inline::post_send(qp, &raw mut first, &raw mut bad) };
        assert!(got == EOPNOTSUPP && ptr::eq(bad, &raw const last), "flag {bit} in a chain: {got}");
        let mut wcs = [farcall_verbs::Wc::default(); 4];
        // SAFETY: a live queue.
        assert_eq!(unsafe { inline::poll_cq(opened.cq, &mut wcs) }, 1, "the first was posted");
    }
    let mut none: *mut RecvWr<'static> = ptr::null_mut();
    // SAFETY: a live pair; an empty chain is nothing to do.
    assert_eq!(unsafe { inline::post_recv(qp, ptr::null_mut(), &raw mut none) }, 0);
    // SAFETY: a live pair.
    assert_eq!(unsafe { (opened.library.destroy_qp)(qp) }, 0);
}

/// Optional access flags are ignored for regions and for queue pairs. `ibv_query_qp` returns the program's flags.
#[test]
fn optional_access_is_taken_by_regions_and_queue_pairs() {
    let opened = Opened::new();
    let mut bytes = [0_u8; 64];
    let addr = bytes.as_mut_ptr();
    // MW_BIND, HUGETLB, RELAXED_ORDERING and the rest of the optional range.
    for bit in [4, 7].into_iter().chain(20..30) {
        // SAFETY: a live domain, memory that outlives the region.
        unsafe {
            let made =
                (opened.library.ibv_reg_mr_iova2)(opened.pd, addr.cast(), 64, addr as u64, 1 | 1 << bit);
            assert!(!made.is_null(), "access bit {bit}: errno {}", errno());
            assert_eq!((opened.library.dereg_mr)(made), 0);
        }
    }
    let init = mask::STATE | mask::PORT | mask::PKEY_INDEX | mask::ACCESS_FLAGS;
    let qp = opened.pair(|_| ());
    for bit in 0..32 {
        let is_known = bit <= 9 || (20..30).contains(&bit);
        // SAFETY: zero is valid for every field; a live pair.
        let (got, told) = unsafe {
            let (mut attr, mut made_with): (QpAttr, QpInitAttr) = (zeroed(), zeroed());
            attr.qp_state = 0;
            assert_eq!((opened.library.modify_qp)(qp, &raw mut attr, mask::STATE), 0);
            (attr.qp_state, attr.port_num, attr.qp_access_flags) = (1, 1, 1 << bit);
            let got = (opened.library.modify_qp)(qp, &raw mut attr, init);
            assert_eq!((opened.library.query_qp)(qp, &raw mut attr, -1, &raw mut made_with), 0);
            (got, attr.qp_access_flags)
        };
        let expected = if is_known { (0, 1 << bit) } else { (EINVAL, 0) };
        assert_eq!((got, told), expected, "access bit {bit}");
    }
    // SAFETY: a live pair.
    assert_eq!(unsafe { (opened.library.destroy_qp)(qp) }, 0);
}

fn to_error(opened: &Opened, qp: *mut Qp) {
    // SAFETY: zero is valid for every field; a live pair.
    unsafe {
        let mut attr: QpAttr = zeroed();
        (attr.qp_state, attr.port_num) = (1, 1);
        let init = mask::STATE | mask::PORT | mask::PKEY_INDEX | mask::ACCESS_FLAGS;
        assert_eq!((opened.library.modify_qp)(qp, &raw mut attr, init), 0);
        attr.qp_state = 6;
        assert_eq!((opened.library.modify_qp)(qp, &raw mut attr, mask::STATE), 0);
    }
}

/// Calls that destroy an object, or create one from it, identify it by its context and handle, like the kernel does. A
/// second call finds no object.
#[test]
fn refuses_wrong_handles_and_objects_that_are_gone() {
    let opened = Opened::new();
    let (library, context, pd, cq) = (opened.library, opened.context, opened.pd, opened.cq);
    let mut memory = vec![0_u8; 4096];
    // SAFETY: live objects, whose handles are restored; the library does not access destroyed objects.
    unsafe {
        let other = (library.open_device)(device());
        assert!(!other.is_null());
        let mut path: AhAttr = zeroed();
        (path.is_global, path.port_num) = (1, 1);
        assert_eq!((library.query_gid)(context, 1, 0, &raw mut path.grh.dgid), 0);
        let mut init: SrqInitAttr = zeroed();
        init.attr.max_wr = 4;
        let (addr, len) = (memory.as_mut_ptr().cast::<c_void>(), memory.len());
        let mr = (library.reg_mr)(pd, addr, len, 1);
        let srq = (library.create_srq)(pd, &raw mut init);
        let qp = opened.pair(|_| ());
        let ah = (library.create_ah)(pd, &raw mut path);
        let (own_pd, own_cq) = (
            (library.alloc_pd)(context),
            (library.create_cq)(context, 8, ptr::null_mut(), ptr::null_mut(), 0),
        );
        assert!(
            !mr.is_null()
                && !srq.is_null()
                && !qp.is_null()
                && !ah.is_null()
                && !own_pd.is_null()
                && !own_cq.is_null()
        );
        macro_rules! refuses {
            ($what:literal, $object:expr, $destroy:expr) => {{
                let (object, right) = ($object, (*$object).handle);
                (*object).handle = !right;
                clear_errno();
                let got = $destroy(object);
                assert_eq!((got, errno()), (ENOENT, ENOENT), "{} with a wrong handle", $what);
                (*object).handle = right;
                (*object).context = other;
                clear_errno();
                let got = $destroy(object);
                assert_eq!((got, errno()), (ENOENT, ENOENT), "{} with another context", $what);
                (*object).context = context;
                assert_eq!($destroy(object), 0, $what);
                clear_errno();
                assert_eq!(($destroy(object), errno()), (ENOENT, ENOENT), "{} again", $what);
            }};
        }
        // Creating objects fails with a wrong handle of a domain or queue.
        (*own_pd).handle = !(*own_pd).handle;
        assert!((library.reg_mr)(own_pd, addr, len, 1).is_null() && errno() == ENOENT);
        assert!((library.create_srq)(own_pd, &raw mut init).is_null() && errno() == ENOENT);
        assert!((library.create_ah)(own_pd, &raw mut path).is_null() && errno() == ENOENT);
        (*own_pd).handle = !(*own_pd).handle;
        (*own_cq).handle = !(*own_cq).handle;
        assert!(opened.pair(|attr| attr.recv_cq = own_cq).is_null() && errno() == ENOENT);
        (*own_cq).handle = !(*own_cq).handle;
        let mut attr: QpAttr = zeroed();
        (*qp).handle = !(*qp).handle;
        assert_eq!((library.modify_qp)(qp, &raw mut attr, 1), ENOENT);
        (*qp).handle = !(*qp).handle;
        refuses!("ibv_destroy_qp", qp, library.destroy_qp);
        refuses!("ibv_dereg_mr", mr, library.dereg_mr);
        refuses!("ibv_destroy_srq", srq, library.destroy_srq);
        refuses!("ibv_destroy_ah", ah, library.destroy_ah);
        refuses!("ibv_dealloc_pd", own_pd, library.dealloc_pd);
        refuses!("ibv_destroy_cq", own_cq, library.destroy_cq);
        assert_eq!(inline::req_notify_cq(cq, 0), EINVAL, "no channel");
        assert!(opened.pair(|attr| attr.cap.max_inline_data = 4097).is_null() && errno() == EINVAL);
        let empty = (library.reg_mr)(pd, addr, 0, 1);
        assert!(!empty.is_null() && (*empty).length == 0, "a region of no bytes");
        assert_eq!((library.dereg_mr)(empty), 0);
        // The objects of a queue pair, and of a completion queue, belong to one context.
        let of_other = (library.create_cq)(other, 8, ptr::null_mut(), ptr::null_mut(), 0);
        for change in
            [(|attr, cq| attr.send_cq = cq) as fn(&mut QpInitAttrEx, *mut Cq), |attr, cq| attr.recv_cq = cq]
        {
            assert!(opened.pair(|attr| change(attr, of_other)).is_null() && errno() == EINVAL);
        }
        let channel = (library.create_comp_channel)(other);
        clear_errno();
        let made = (library.create_cq)(context, 8, ptr::null_mut(), channel, 0);
        assert!(made.is_null() && errno() == EINVAL, "a channel of another context");
        assert_eq!((library.destroy_comp_channel)(channel), 0);
        let mut device: DeviceAttr = zeroed();
        assert_eq!((library.query_device)(other, &raw mut device), 0);
        assert_eq!((library.ibv_resize_cq)(of_other, device.max_cqe), 0);
        assert_eq!(
            (library.ibv_resize_cq)(of_other, device.max_cqe + 1),
            EINVAL,
            "a longer queue than there is"
        );
        assert_eq!((library.destroy_cq)(of_other), 0);
        assert_eq!((library.close_device)(other), 0);
        clear_errno();
        assert_eq!(((library.close_device)(other), errno()), (-1, ENOENT), "ibv_close_device again");
    }
}
