//! The reported maximum numbers of objects can be reached, and one more fails with a reason. Runs in processes of their
//! own, which lower their limit of descriptors.

use std::path::Path;

use crate::support::holdings::Holdings;
use crate::support::process::*;
use crate::support::*;
use farcall_softnic::SoftNic;
use farcall_verbs::{Access, AhAttr, CqInitAttr, QpCap, QpType, RawCq, SrqInitAttr};
use rustix::process::{Resource, Rlimit, setrlimit};

/// More than the process has descriptors.
const QUEUES: usize = 4000;

#[test]
fn child_entry() {
    let Some((role, args, mut line)) = role() else { return };
    let limit = Some(args[0]);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).unwrap();
    match role.as_str() {
        "queues" => queues(),
        "told" => told(),
        "apart" => apart(),
        other => panic!("unknown role {other}"),
    }
    line.say([1, 0, 0, 0]);
    std::process::exit(0);
}

fn in_process(role: &str, descriptors: u64, environment: &[(&str, &Path)]) {
    let mut other = start_with(role, &[descriptors], environment);
    assert_eq!(other.hear_in_the_end(), Some([1, 0, 0, 0]), "{role} failed");
}

fn queues() {
    let (mut a, mut b) = (End::default(), End::default());
    let before = Holdings::now();
    let attr = CqInitAttr { cqe: 16, channel: None };
    let queues: Vec<_> = (0..QUEUES).map(|_| a.context.create_cq(&attr).unwrap()).collect();
    let armed = CqInitAttr { cqe: 16, channel: Some(&*a.channel) };
    let waking: Vec<_> = (0..QUEUES).map(|_| a.context.create_cq(&armed).unwrap()).collect();
    let now = Holdings::now();
    let more = now.descriptors.len() - before.descriptors.len();
    assert!(more <= 2 * QUEUES / 64 + 1, "{more} more descriptors for {} completion queues", 2 * QUEUES);
    // They work, including those that share memory with others.
    for mut cq in queues.into_iter().rev().take(2) {
        let qp = create_qp(&*a.pd, (&*cq, &*cq), None, QpCap::default(), QpType::Rc);
        std::mem::swap(&mut a.cq, &mut cq);
        a.qp = qp;
        b.qp = create_qp(&*b.pd, (&*b.cq, &*b.cq), None, QpCap::default(), QpType::Rc);
        join(&mut a, &mut b, End::rts);
        a.reach();
        b.reach();
    }
    drop(waking);
}

fn apart() {
    const QUEUES: usize = 8;
    let a = End::default();
    let before = Holdings::now();
    let attr = CqInitAttr { cqe: 16, channel: None };
    let queues: Vec<_> = (0..QUEUES).map(|_| a.context.create_cq(&attr).unwrap()).collect();
    let now = Holdings::now();
    assert_eq!(now.descriptors.len() - before.descriptors.len(), queues.len());
    assert_eq!(now.mappings.len() - before.mappings.len(), queues.len());
}

/// Creates as many objects as reported and verifies that one more is refused. After one is released, another can be
/// created.
fn reach<T>(told: u32, what: &str, make: impl Fn() -> farcall_verbs::Result<T>) {
    let mut made: Vec<T> =
        (0..told).map(|n| make().unwrap_or_else(|e| panic!("{what} {n} of {told}: {e}"))).collect();
    let Err(refused) = make() else { panic!("more than {told} {what}") };
    let text = refused.to_string();
    assert!(["limit", "use fewer"].iter().any(|remedy| text.contains(remedy)), "{what}: {text}");
    let errno = match &refused {
        farcall_verbs::Error::Os { source, .. } => source.raw_os_error(),
        _ => None,
    };
    assert!([None, Some(libc::EMFILE), Some(libc::ENOMEM)].contains(&errno), "{what}: {text}");
    made.clear();
    assert!(make().is_ok(), "{what}");
}

fn told() {
    let context = SoftNic::open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let attr = context.query_device().unwrap();
    let queue = || context.create_cq(&CqInitAttr { cqe: 16, channel: None });
    // One domain exists already.
    reach(attr.max_pd - 1, "domains", || context.alloc_pd());
    let gid = context.query_gid(1, 0).unwrap();
    let path = AhAttr { dgid: gid, port_num: 1, ..AhAttr::default() };
    reach(attr.max_ah, "address handles", || pd.create_ah(&path));
    reach(attr.max_srq, "shared receive queues", || pd.create_srq(&SrqInitAttr { max_wr: 1, max_sge: 1 }));
    reach(attr.max_cq, "completion queues", queue);
    let cq: Box<dyn RawCq> = queue().unwrap();
    let pair = farcall_verbs::QpInitAttr {
        qp_type: QpType::Rc,
        send_cq: &*cq,
        recv_cq: &*cq,
        srq: None,
        cap: QpCap::default(),
        sq_sig_all: false,
    };
    reach(attr.max_qp, "queue pairs", || pd.create_qp(&pair));
    let mut memory = vec![0_u8; 64];
    let at = memory.as_mut_ptr();
    // SAFETY: the memory outlives its regions.
    reach(attr.max_mr, "regions", || unsafe { pd.reg_mr(at, 64, Access::LOCAL_WRITE) });
}

#[test]
fn thousands_of_completion_queues_need_few_descriptors() {
    in_process("queues", 1024, &[]);
}

#[test]
fn reaches_reported_limits_and_explains_excess() {
    in_process("told", 272, &[]);
}

#[test]
fn shares_completion_queues_with_connected_group_members_only() {
    in_process("apart", 1024, &[("FARCALL_GROUP", Path::new("0"))]);
}
