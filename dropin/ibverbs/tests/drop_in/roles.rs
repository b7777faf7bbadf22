//! Programs that tests run: this test program again, in another process, with this library as the system's. Written
//! for libibverbs' own interface (`farcall_ibv` loads it by its name).

use std::process::Command;
use std::sync::Arc;

use farcall_verbs::{
    Access, AhAttr, Context, CqInitAttr, Device, MrMemory, Mtu, Provider, QpAttr, QpCap, QpInitAttr, QpType,
    RecvWr, SendWr, Sge, Wc,
};

use crate::support::Folder;

/// Argument of a role.
const ARGUMENT: &str = "FARCALL_TEST_ARGUMENT";

/// Returns the command that runs this program in one of the roles below.
pub fn role(folder: &Folder, name: &str, argument: &str) -> Command {
    let mut command = folder.program(std::env::current_exe().unwrap().to_str().unwrap());
    command.args(["--ignored", "--exact", &format!("roles::{name}"), "--nocapture"]).env(ARGUMENT, argument);
    command
}

fn argument() -> String {
    std::env::var(ARGUMENT).expect("run by a test")
}

/// Returns the drop-in library's device.
fn device() -> Arc<dyn Device> {
    farcall_ibv::Ibv::new().devices().unwrap().remove(0)
}

fn context() -> Arc<dyn Context> {
    device().open().unwrap()
}

/// Threads create and destroy objects concurrently.
#[test]
#[ignore = "a role"]
fn threads_register_memory() {
    let rounds: usize = argument().parse().unwrap();
    let context = context();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let domain = context.alloc_pd().unwrap();
                for _ in 0..rounds {
                    drop(domain.alloc_mr(4096, Access::LOCAL_WRITE).unwrap());
                }
            });
        }
    });
}

/// A program that registers a region of zero bytes through the provider for libibverbs.
#[test]
#[ignore = "a role"]
fn registers_no_bytes() {
    let domain = context().alloc_pd().unwrap();
    let mut memory = [0_u8; 64];
    let (addr, access) = (memory.as_mut_ptr(), Access::LOCAL_WRITE);
    // SAFETY: the memory outlives its region.
    let empty = unsafe { domain.reg_mr(addr, 0, access) }.unwrap();
    assert_eq!((empty.addr(), empty.len_bytes()), (addr, 0));
    assert!(domain.alloc_mr(0, access).is_err(), "there is no memory of no bytes");
    // SAFETY: the memory outlives its region.
    let zero_based = unsafe { domain.reg_mr_at(MrMemory::new(addr, 64).named_from(0), access) };
    assert!(zero_based.is_err_and(|error| error.to_string().contains("reg_mr_at")));
}

/// A program that ends without leaving `main`.
#[test]
#[ignore = "a role"]
fn aborts() {
    let _domain = context().alloc_pd().unwrap();
    std::process::abort();
}

/// A program that lists the devices through the C interface itself.
#[test]
#[ignore = "a role"]
fn asks_for_devices() {
    // SAFETY: the drop-in library exports the functions with libibverbs' own signatures.
    unsafe {
        let library = libloading::Library::new("libibverbs.so.1").unwrap();
        type GetList = unsafe extern "C" fn(*mut i32) -> *mut *mut std::ffi::c_void;
        let get_list: libloading::Symbol<'_, GetList> = library.get(b"ibv_get_device_list\0").unwrap();
        for _ in 0..2 {
            let mut count = 0;
            if get_list(&raw mut count).is_null() {
                let errno = std::io::Error::last_os_error().raw_os_error();
                println!("no list, {}", if errno == Some(libc::EINVAL) { "EINVAL" } else { "otherwise" });
            } else {
                println!("{count} devices");
            }
        }
        // It has threads, so it must not be unloaded.
        std::mem::forget(library);
    }
}

/// A program that sends itself messages, reports that, and waits until it is killed.
#[test]
#[ignore = "a role"]
fn sends_and_stays() {
    let context = context();
    let domain = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInitAttr { cqe: 64, channel: None }).unwrap();
    let make = || {
        let cap = QpCap::default();
        let init = QpInitAttr {
            send_cq: &*cq,
            recv_cq: &*cq,
            srq: None,
            cap,
            qp_type: QpType::Rc,
            sq_sig_all: true,
        };
        domain.create_qp(&init).unwrap()
    };
    let (mut one, mut other) = (make(), make());
    let path = AhAttr { dgid: context.query_gid(1, 0).unwrap(), port_num: 1, ..AhAttr::default() };
    let numbers = [one.qp_num(), other.qp_num()];
    for (pair, dest) in [(&mut one, numbers[1]), (&mut other, numbers[0])] {
        pair.modify(&QpAttr::init(Access::LOCAL_WRITE)).unwrap();
        pair.modify(&QpAttr::rtr(dest, 0, path, Mtu::Mtu1024)).unwrap();
        pair.modify(&QpAttr { rnr_retry: Some(0), ..QpAttr::rts(0) }).unwrap();
    }
    let memory = domain.alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
    let sges = [Sge { addr: memory.addr() as u64, length: 100, lkey: memory.lkey() }];
    let mut cq = cq;
    let mut take = |mut count: usize| {
        let mut one = [Wc::default()];
        while count > 0 {
            count -= cq.poll(&mut one).unwrap();
        }
    };
    // Three that arrive, and one for which there is no receive.
    for number in 0..4 {
        // SAFETY: the region outlives the requests.
        unsafe {
            if number < 3 {
                other.post_recv(&[RecvWr::new(number, &sges)]).unwrap();
            }
            one.post_send(&[SendWr::send(number, &sges)]).unwrap();
        }
        take(if number < 3 { 2 } else { 1 });
    }
    println!("ready {:#08x}", numbers[0]);
    loop {
        std::thread::park();
    }
}
