//! Checks whether regions of remote memory work on this machine.

use super::check::Finding;
use farcall::memory::Preflight;

pub fn check() -> Finding {
    const NAME: &str = "userfaultfd";
    let found = Preflight::run();
    match found.remedy() {
        None => Finding::ok(NAME, found.meaning()),
        Some(remedy) => Finding::warn(
            NAME,
            found.meaning(),
            "remote calls, stores and memory nodes do not need it",
            remedy,
        ),
    }
}
