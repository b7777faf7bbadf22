//! The methods by number.

/// What a request asks for. The number is the RPC layer's method id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
#[non_exhaustive]
pub enum Method {
    /// Nothing: answers who serves here.
    Ping = 1,
    /// The value of a key.
    Get = 2,
    /// Stores a value: set, add, replace, append or prepend.
    Put = 3,
    /// Removes a key, optionally only at one version.
    Delete = 4,
    /// Stores a value if the item has one version.
    Cas = 5,
    /// Sets when an item expires.
    Touch = 6,
    /// The value of a key, and sets when it expires.
    GetAndTouch = 7,
    /// Adds to a decimal number.
    Incr = 8,
    /// Subtracts from a decimal number.
    Decr = 9,
    /// The values of several keys of one partition.
    MultiGet = 10,
    /// Counters and sizes.
    Stats = 11,
    /// Makes everything stored so far unreachable.
    FlushAll = 12,
}

impl Method {
    /// Every method.
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

    /// The method with this number.
    #[inline]
    pub fn from_id(id: u16) -> Option<Method> {
        let method = *Self::ALL.get(usize::from(id).checked_sub(1)?)?;
        debug_assert_eq!(method.id(), id);
        Some(method)
    }

    /// The number on the wire.
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
