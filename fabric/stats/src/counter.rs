//! A counter with one writer.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter with one writer and any number of readers.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one. Only the single writer may call this.
    #[inline]
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `count`. Only the single writer may call this: it is a load and a store, not an atomic read-modify-write.
    /// Two writers would lose counts, with no other harm.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Sets the value of a gauge, as opposed to a sum.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Returns the value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A struct of counters that can be placed in shared memory; declared with [`crate::counters!`].
///
/// # Safety
/// The type must be `repr(C)` and consist of [`Counter`] fields only, one for each name.
pub unsafe trait Counters: Default {
    /// Names in the order of the fields, at most 31 bytes each.
    const NAMES: &'static [&'static str];

    /// Descriptions of the counters in the same order; empty if the names need no explanation.
    const HELP: &'static [&'static str] = &[];
}

/// Declares a `#[repr(C)]` struct of [`Counter`]s with the table of its names, for use in a [`crate::Block`].
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* $vis:vis struct $Name:ident { $($(#[doc = $doc:literal])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        #[repr(C)]
        $vis struct $Name {
            $($(#[doc = $doc])* pub $field: $crate::Counter,)*
        }

        impl $Name {
            /// Names, in the order of the fields.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($field),)*];

            /// Values, in the order of the names.
            #[allow(dead_code, reason = "not every set of counters is read like this")]
            pub fn values(&self) -> [u64; Self::NAMES.len()] {
                [$(self.$field.get(),)*]
            }
        }

        // SAFETY: the struct is `repr(C)` and has only `Counter` fields, one for each name.
        unsafe impl $crate::Counters for $Name {
            const NAMES: &'static [&'static str] = $Name::NAMES;
            const HELP: &'static [&'static str] = &[$(concat!($($doc),*)),*];
        }
    };
}
