//! Workloads, experiments and reports of Farcall.
