//! Remote-fetching RPC over RDMA verbs (RF-RPC and server-reply).
