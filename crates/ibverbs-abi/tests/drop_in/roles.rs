//! Programs that tests run: this test program again, in another process, on the library as the system's. Written against
//! libibverbs' own interface (`farcall_ibv` loads it by its name).

use std::process::Command;
use std::sync::Arc;

use farcall_verbs::{Access, Context, Device, Provider};

use crate::support::Folder;

/// What a role may be told.
const ARGUMENT: &str = "FARCALL_TEST_ARGUMENT";

/// This program in one of the roles below.
pub fn role(folder: &Folder, name: &str, argument: &str) -> Command {
    let mut command = folder.program(std::env::current_exe().unwrap().to_str().unwrap());
    command.args(["--ignored", "--exact", &format!("roles::{name}"), "--nocapture"]).env(ARGUMENT, argument);
    command
}

fn argument() -> String {
    std::env::var(ARGUMENT).expect("run by a test")
}

/// The drop-in library's device.
fn device() -> Arc<dyn Device> {
    farcall_ibv::Ibv::new().devices().unwrap().remove(0)
}

fn context() -> Arc<dyn Context> {
    device().open().unwrap()
}

/// Threads that make and destroy things at the same time.
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

/// A program that ends without leaving `main`.
#[test]
#[ignore = "a role"]
fn aborts() {
    let _domain = context().alloc_pd().unwrap();
    std::process::abort();
}
