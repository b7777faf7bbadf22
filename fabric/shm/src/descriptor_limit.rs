//! How many descriptors this process may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// No process here needs more. Hard limits may be far above, and some programs close every number below the limit.
const LIMIT_MAX: u64 = 1 << 20;

/// Raises the limit of descriptors (RLIMIT_NOFILE) as far as this process may, to 2^20 at most, and returns it. Usual
/// limits are for programs that wait with select(2), which goes on working for the first 1024.
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
