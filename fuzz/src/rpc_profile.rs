//! Arbitrary bytes as the file of a profile: no panic, and the numbers of an accepted profile are valid in
//! computations.

use farcall_rpc::tune::{Chooser, Peer, ProfileFile, Sample, Scope};

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let Ok(file) = ProfileFile::parse(bytes) else { return };
    let again = file.to_json().map(|text| ProfileFile::parse(text.as_bytes()));
    assert!(matches!(again, Ok(Ok(again)) if again == file), "what was read is written and read again");
    let scope = Scope { device: "softnic/softnic0".into(), peer: Peer::ThisHost };
    let Ok(profile) = file.check(&scope) else { return };
    assert!(profile.low_bytes() <= profile.high_bytes() && profile.retries_bound() > 0);
    let sample = Sample { result_bytes: 600, time_ns: 3_000 };
    let choice = Chooser::new(1).choose(&profile, &[sample]);
    assert!((1..=profile.retries_bound()).contains(&choice.retries_max));
}
