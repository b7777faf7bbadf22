//! A partitioned key-value store with RPC and memcached front doors.
