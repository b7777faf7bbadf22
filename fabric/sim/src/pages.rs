//! Permissions of this process's pages: a device must not be given memory that the processor may not access itself.

/// Returns whether all of `len` bytes at `addr` are mapped, readable, and writable if `for_writing`. Returns true if
/// the system does not provide the information.
pub(crate) fn may_access(addr: u64, len: u64, for_writing: bool) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return true };
    covers(&maps, addr, len, for_writing)
}

/// Returns whether lines of `/proc/self/maps`, which are sorted by address, cover a range without a gap.
fn covers(maps: &str, addr: u64, len: u64, for_writing: bool) -> bool {
    let Some(end) = addr.checked_add(len) else { return false };
    let mut covered_to = addr;
    for line in maps.lines() {
        let Some((from, to, permissions)) = parse(line) else { continue };
        if to <= covered_to {
            continue;
        }
        let is_permitted =
            permissions.starts_with('r') && (!for_writing || permissions[1..].starts_with('w'));
        if from > covered_to || !is_permitted {
            return false;
        }
        covered_to = to;
        if covered_to >= end {
            return true;
        }
    }
    false
}

fn parse(line: &str) -> Option<(u64, u64, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some((hex(from)?, hex(to)?, words.next().filter(|permissions| permissions.len() == 4)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "1000-3000 r--p 0 0:0 0\n3000-4000 rw-p 0 0:0 0 name\n6000-7000 ---p 0 0:0 0\n";

    #[test]
    fn ranges_are_covered_without_gaps_and_with_permission() {
        assert!(covers(MAPS, 0x1000, 0x3000, false));
        assert!(covers(MAPS, 0x3800, 0x800, true));
        assert!(!covers(MAPS, 0x2fff, 2, true), "begins in pages that cannot be written");
        assert!(!covers(MAPS, 0x3fff, 2, false), "ends beyond");
        assert!(!covers(MAPS, 0xfff, 2, false), "begins before");
        assert!(!covers(MAPS, 0x6000, 1, false), "no permission");
        assert!(!covers(MAPS, u64::MAX, 2, false));
    }

    #[test]
    fn the_systems_own_lines_are_understood() {
        let mut local = [0u8; 64];
        assert!(may_access(local.as_mut_ptr() as u64, 64, true));
        let constant: &'static str = "text of the program";
        assert!(!may_access(constant.as_ptr() as u64, 4, true));
        assert!(may_access(constant.as_ptr() as u64, 4, false));
        assert!(!may_access(8, 8, false));
    }
}
