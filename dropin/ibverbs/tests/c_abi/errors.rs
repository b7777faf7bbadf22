//! Calls that return an error number also set `errno`, as the system calls of the original library do.

use std::ffi::c_int;
use std::ptr;

use farcall_layout::{GidEntry, PortAttr, SrqAttr, SrqInitAttr, Values, mask};
use libc::{EBUSY, EINVAL, EOPNOTSUPP};

use crate::library::{clear_errno, errno, inline, zeroed};
use crate::refusals::Opened;

/// Makes every call fail that can return an error number.
#[test]
fn every_error_number_that_a_call_returns_is_in_errno() {
    let opened = Opened::new();
    let (library, context, pd, cq) = (opened.library, opened.context, opened.pd, opened.cq);
    let qp = opened.pair(|_| ());
    let check = |name: &str, call: &mut dyn FnMut() -> c_int, number: c_int| {
        clear_errno();
        let got = call();
        assert!(got == number || got == -1, "{name} returned {got}");
        assert_eq!(errno(), number, "{name}: errno");
    };
    // SAFETY: live objects, complete structures, and arguments that are refused before they are dereferenced.
    unsafe {
        let mut init: SrqInitAttr = zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (4, 1);
        let srq = (library.create_srq)(pd, &raw mut init);
        let used = opened.pair(|attr| attr.srq = srq);
        assert!(!srq.is_null() && !used.is_null());
        let mut bytes = [0_u8; 64];
        let mr = (library.reg_mr)(pd, bytes.as_mut_ptr().cast(), 64, 1);
        let channel = (library.create_comp_channel)(context);
        let told = (library.create_cq)(context, 4, ptr::null_mut(), channel, 0);
        assert!(!mr.is_null() && !told.is_null());

        check("ibv_modify_qp", &mut || (library.modify_qp)(qp, &mut zeroed(), 1 << 22), EOPNOTSUPP);
        let mut rtr = zeroed();
        check(
            "ibv_modify_qp, INIT to nothing",
            &mut || (library.modify_qp)(qp, &raw mut rtr, mask::STATE | mask::QKEY),
            EINVAL,
        );
        check("ibv_dealloc_pd", &mut || (library.dealloc_pd)(pd), EBUSY);
        check("ibv_destroy_cq", &mut || (library.destroy_cq)(cq), EBUSY);
        check("ibv_destroy_srq", &mut || (library.destroy_srq)(srq), EBUSY);
        check("ibv_destroy_comp_channel", &mut || (library.destroy_comp_channel)(channel), EBUSY);
        check("ibv_resize_cq", &mut || (library.ibv_resize_cq)(cq, 0), EINVAL);
        let mut shrunk: SrqAttr = zeroed();
        check("ibv_modify_srq, mask", &mut || (library.modify_srq)(srq, &raw mut shrunk, 1 << 5), EINVAL);
        shrunk.max_wr = u32::MAX;
        check("ibv_modify_srq, size", &mut || (library.modify_srq)(srq, &raw mut shrunk, 1), EINVAL);
        let mut port: PortAttr = zeroed();
        check("ibv_query_port", &mut || inline::query_port(context, 2, &raw mut port), EINVAL);
        check("ibv_query_port, old", &mut || (library.query_port)(context, 2, &raw mut port), EINVAL);
        check("ibv_query_gid", &mut || (library.query_gid)(context, 1, 99, &mut zeroed()), EINVAL);
        check("ibv_query_pkey", &mut || (library.ibv_query_pkey)(context, 1, 9, &mut zeroed()), EINVAL);
        check("ibv_get_pkey_index", &mut || (library.ibv_get_pkey_index)(context, 1, 7), EINVAL);
        let entry_bytes = size_of::<GidEntry>();
        let mut entry: GidEntry = zeroed();
        let query = library._ibv_query_gid_ex;
        check("ibv_query_gid_ex", &mut || query(context, 1, 99, &raw mut entry, 0, entry_bytes), EINVAL);
        check(
            "ibv_query_gid_ex, flags",
            &mut || query(context, 1, 0, &raw mut entry, 7, entry_bytes),
            EINVAL,
        );
        check(
            "ibv_query_gid_table",
            &mut || -(library._ibv_query_gid_table)(context, &raw mut entry, 0, 0, entry_bytes) as c_int,
            EINVAL,
        );
        check(
            "ibv_query_port_speed",
            &mut || (library.ibv_query_port_speed)(context, 9, &mut zeroed()),
            EINVAL,
        );
        let rereg = library.ibv_rereg_mr;
        clear_errno();
        assert_eq!((rereg(mr, 1 << 9, pd, ptr::null_mut(), 0, 0), errno()), (-1, EINVAL), "ibv_rereg_mr");
        check("ibv_set_ece", &mut || (library.ibv_set_ece)(qp, &mut [1, 0, 0]), EOPNOTSUPP);
        let gid = [0xff_u8; 16];
        check("ibv_attach_mcast", &mut || (library.ibv_attach_mcast)(qp, &raw const gid, 0), EOPNOTSUPP);
        let mut values: Values = zeroed();
        values.comp_mask = 1 << 4;
        check(
            "ibv_query_rt_values_ex",
            &mut || ((*opened.tables()).query_rt_values)(context, &raw mut values),
            EOPNOTSUPP,
        );
        let mut bad = ptr::null_mut();
        let mut wr = farcall_verbs::SendWr::send(1, &[]);
        check("ibv_post_send", &mut || inline::post_send(qp, &raw mut wr, &raw mut bad), EINVAL);
        let (mut bad, mut wr) = (ptr::null_mut(), farcall_verbs::RecvWr::new(1, &[]));
        check("ibv_post_recv", &mut || inline::post_recv(qp, &raw mut wr, &raw mut bad), EINVAL);
        let sges = [farcall_verbs::Sge { addr: 0, length: 8, lkey: 7 }; 64];
        let mut wr = farcall_verbs::RecvWr::new(1, &sges);
        // The elements outlive the call.
        let wr: *mut farcall_verbs::RecvWr<'static> = (&raw mut wr).cast();
        check("ibv_post_srq_recv", &mut || inline::post_srq_recv(srq, wr, &raw mut bad), EINVAL);
        let extended = opened.pair(|attr| (attr.comp_mask, attr.send_ops_flags) = (1 | 1 << 6, 1));
        let ops = library.ibv_qp_to_qp_ex;
        let building = ops(extended);
        check(
            "ibv_wr_complete",
            &mut || {
                ((*building).wr_start)(building);
                ((*building).wr_flags) = 1 << 20;
                ((*building).wr_send)(building);
                ((*building).wr_complete)(building)
            },
            EOPNOTSUPP,
        );

        for pair in [qp, used, extended] {
            assert_eq!((library.destroy_qp)(pair), 0);
        }
        assert_eq!((library.dereg_mr)(mr), 0);
        assert_eq!((library.destroy_srq)(srq), 0);
        assert_eq!((library.destroy_cq)(told), 0);
        assert_eq!((library.destroy_comp_channel)(channel), 0);
    }
}
