/// Returns the step of tests that end a process at its n-th store to shared memory, which try only every n-th store:
/// `FARCALL_TEST_STORE_STEP`, 1 by default.
pub fn store_step() -> u64 {
    std::env::var("FARCALL_TEST_STORE_STEP").map_or(1, |step| step.parse().unwrap())
}
