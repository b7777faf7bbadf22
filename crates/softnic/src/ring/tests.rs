//! Tests of the ring without a model checker.
