//! Method numbers.

/// Method of a request. The number is the method id of the RPC layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum Method {
    /// Returns the identity of the partition, without other effect.
    Ping = 1,
    /// Returns the value of a key.
    Get = 2,
    /// Stores a value: set, add, replace, append or prepend.
    Put = 3,
    /// Removes a key, optionally only if it has one version.
    Delete = 4,
    /// Stores a value if the item has the given version.
    Cas = 5,
    /// Sets the expiration time of an item.
    Touch = 6,
    /// Returns the value of a key and sets its expiration time.
    GetAndTouch = 7,
    /// Adds to a decimal number.
    Incr = 8,
    /// Subtracts from a decimal number.
    Decr = 9,
    /// Returns the values of several keys of one partition.
    MultiGet = 10,
    /// Returns counters and sizes.
    Stats = 11,
    /// Makes all items stored so far unreachable.
    FlushAll = 12,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 12] = [
        Method::Ping,
        Method::Get,
        Method::Put,
        Method::Delete,
        Method::Cas,
        Method::Touch,
        Method::GetAndTouch,
        Method::Incr,
        Method::Decr,
        Method::MultiGet,
        Method::Stats,
        Method::FlushAll,
    ];

    /// Returns the method with this number.
    #[inline]
    pub fn from_id(id: u16) -> Option<Method> {
        let method = *Self::ALL.get(usize::from(id).checked_sub(1)?)?;
        debug_assert_eq!(method.id(), id);
        Some(method)
    }

    /// Returns the number on the wire.
    #[inline]
    pub fn id(self) -> u16 {
        self as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_dense_and_stable() {
        for (place, method) in Method::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(method.id()), place + 1);
            assert_eq!(Method::from_id(method.id()), Some(method));
        }
        assert_eq!(Method::from_id(0), None);
        assert_eq!(Method::from_id(13), None);
    }
}
