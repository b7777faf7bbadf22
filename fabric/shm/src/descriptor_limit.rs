//! Limit of the number of file descriptors of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Maximum limit that this process sets. Hard limits may be far higher, and some programs close every number below the
/// limit.
const LIMIT_MAX: u64 = 1 << 20;

/// Raises the limit of file descriptors (RLIMIT_NOFILE) to the hard limit, at most 2^20, and returns it. Default limits
/// are low for the sake of programs that use select(2), which still works for the first 1024 descriptors.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(LIMIT_MAX).min(LIMIT_MAX);
    let current = limit.current.unwrap_or(u64::MAX);
    let raised = Rlimit { current: Some(most), ..limit };
    if current < most && setrlimit(Resource::Nofile, raised).is_ok() { most } else { current }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_to_what_is_allowed_and_never_lowered() {
        let before = getrlimit(Resource::Nofile);
        let raised = raise_descriptor_limit();
        assert!(raised >= before.current.unwrap_or(u64::MAX).min(LIMIT_MAX));
        assert_eq!(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), raised);
        assert_eq!(raise_descriptor_limit(), raised);
    }
}
