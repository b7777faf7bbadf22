//! Drivers of Farcall endpoints: thread loop, tokio adapter, waiting strategies, listeners.
