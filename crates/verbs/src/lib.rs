//! The RDMA verbs vocabulary: work requests, completions, provider traits, clock.
