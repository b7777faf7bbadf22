//! Verbs between two processes: this one writes into the memory of another, which runs the same program.
//!
//!     cargo run -p farcall --example verbs_between_processes

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use farcall::SoftNic;
use farcall::verbs::{
    Access, CqInitAttr, Gid, PortChoice, Provider, QpAttr, QpCap, QpInitAttr, QpType, RawCq, RecvWr,
    SendFlags, SendWr, Sge, Wc, WcStatus,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const GREETING: &[u8] = b"hello by RDMA WRITE";

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("target") {
        return one_end(true, std::io::stdin().lock(), std::io::stdout());
    }
    let mut target = Command::new(std::env::current_exe()?)
        .arg("target")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (to, from) = (target.stdin.take().unwrap(), target.stdout.take().unwrap());
    one_end(false, BufReader::new(from), to)?;
    assert!(target.wait()?.success());
    println!("the other process found: {}", String::from_utf8_lossy(GREETING));
    Ok(())
}

/// Both ends connect in the same way; the pipes carry the addresses that each needs of the other.
fn one_end(is_target: bool, mut from: impl BufRead, mut to: impl Write) -> Result<()> {
    let context = SoftNic::new().devices()?[0].open()?;
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(&CqInitAttr { cqe: 16, channel: None })?;
    let mr = pd.alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let (cap, qp_type) = (QpCap::default(), QpType::Rc);
    let attr = QpInitAttr { send_cq: &*cq, recv_cq: &*cq, srq: None, cap, qp_type, sq_sig_all: false };
    let mut qp = pd.create_qp(&attr)?;

    // RESET → INIT → RTR → RTS, as the specification requires. Receives are posted before the peer can send.
    let port = PortChoice::automatic(&*context)?;
    qp.modify(&port.init(Access::REMOTE_WRITE))?;
    // SAFETY: a receive without elements names no memory.
    unsafe { qp.post_recv(&[RecvWr::new(1, &[])])? };
    let gid = u128::from_be_bytes(port.own_gid().0);
    writeln!(to, "{} {gid} {} {} {}", qp.qp_num(), port.attr.lid, mr.remote_addr(), mr.rkey())?;
    let mut line = String::new();
    from.read_line(&mut line)?;
    let word = |place| line.split_whitespace().nth(place).ok_or("the other end said too little");
    let path = port.path_to(Gid(word(1)?.parse::<u128>()?.to_be_bytes()), word(2)?.parse()?);
    qp.modify(&QpAttr::rtr(word(0)?.parse()?, 0, path, port.attr.active_mtu))?;
    qp.modify(&QpAttr::rts(0))?;

    if is_target {
        // The immediate data consumes the posted receive: the WRITE's bytes are in memory by then.
        let wc = completion(&mut *cq)?;
        let mut found = [0; GREETING.len()];
        // SAFETY: the region is longer, and the WRITE into it is complete.
        unsafe { mr.addr().copy_to_nonoverlapping(found.as_mut_ptr(), found.len()) };
        assert_eq!((wc.imm(), &found[..]), (Some(7), GREETING));
        return Ok(());
    }
    let (addr, length) = (GREETING.as_ptr() as u64, GREETING.len() as u32);
    let sges = [Sge { addr, length, lkey: 0 }];
    let write = SendWr::write(1, &sges, word(3)?.parse()?, word(4)?.parse()?).with_imm(7);
    // SAFETY: an inline message is copied during the call.
    unsafe { qp.post_send(&[write.with_flags(SendFlags::SIGNALED | SendFlags::INLINE)])? };
    completion(&mut *cq).map(drop)
}

fn completion(cq: &mut dyn RawCq) -> Result<Wc> {
    let mut wc = [Wc::default()];
    while cq.poll(&mut wc)? == 0 {
        std::hint::spin_loop();
    }
    if wc[0].status == WcStatus::SUCCESS { Ok(wc[0]) } else { Err(wc[0].status.to_string().into()) }
}
