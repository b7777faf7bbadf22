//! A software RNIC in user space: RDMA verbs between processes of one host.
