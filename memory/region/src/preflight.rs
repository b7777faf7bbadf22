//! Test of the features that work on this machine, for this process.

use std::io;

use rustix::process::geteuid;

use crate::paged_memory::PagedMemory;
use crate::uffd::FaultMode;

/// Result of the test.
#[derive(Debug)]
pub enum Preflight {
    /// All features work.
    All,
    /// All features work except system calls that access pages which are not resident: they fail with EFAULT.
    WithoutSystemCalls,
    /// Regions do not work.
    Nothing(io::Error),
}

impl Preflight {
    /// Runs the test by creating a region of one page.
    pub fn run() -> Self {
        match PagedMemory::new(farcall_memory::PAGE_BYTES, 1) {
            Ok((_, FaultMode::All)) => Self::All,
            Ok((_, FaultMode::UserModeOnly)) => Self::WithoutSystemCalls,
            Err(error) => Self::Nothing(error),
        }
    }

    /// Describes the result.
    pub fn meaning(&self) -> String {
        match self {
            Self::All => "regions of remote memory work, also for system calls that touch them".into(),
            Self::WithoutSystemCalls => {
                "regions of remote memory work, but a system call (read, write, send) that touches a page which is not \
                 resident fails with EFAULT: copy through memory of your own"
                    .into()
            }
            Self::Nothing(error) => format!("regions of remote memory do not work: {error}"),
        }
    }

    /// Returns a remedy; `None` if all features work.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::All => None,
            Self::WithoutSystemCalls => {
                Some("let this user open /dev/userfaultfd, or set sysctl vm.unprivileged_userfaultfd=1")
            }
            Self::Nothing(_) if geteuid().is_root() => Some(
                "use kernel 6.8 or newer with CONFIG_USERFAULTFD, and allow userfaultfd in the seccomp profile",
            ),
            Self::Nothing(_) => Some(
                "use kernel 6.8 or newer with CONFIG_USERFAULTFD, allow userfaultfd in the seccomp profile, and let \
                 this user open /dev/userfaultfd",
            ),
        }
    }
}
