//! RDMA remote calls and services that run everywhere.
