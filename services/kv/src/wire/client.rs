//! The client side of several partitions: splits keys by owner, and merges the replies.

use super::{Lookup, MULTI_KEYS_MAX, MultiReply, ReplyError, ReplySink, encode_multi_get};
use crate::key::{KeyError, Router};

/// Keys divided by owner; can be reused for the next multi-get without allocating.
#[derive(Debug, Default)]
pub struct Split {
    /// For each request: its partition, and the indices of its keys in the caller's list.
    requests: Vec<PartRequest>,
    used: usize,
}

/// The keys of one MULTI_GET to one partition.
#[derive(Debug, Default)]
pub struct PartRequest {
    /// Destination partition.
    pub partition: u32,
    places: Vec<usize>,
}

impl PartRequest {
    /// Returns the indices in the caller's list of the keys of this request, in the order of the reply.
    pub fn places(&self) -> &[usize] {
        &self.places
    }

    /// Writes the MULTI_GET request; `keys` is the list that was split.
    pub fn encode(&self, keys: &[&[u8]], out: &mut impl ReplySink) {
        encode_multi_get(self.places.iter().map(|&place| keys[place]), out);
    }

    /// Decodes the reply and calls `each` with every key's index and result.
    ///
    /// # Errors
    /// [`ReplyError`] for a malformed reply or a different number of items; results before the error have been passed
    /// on.
    pub fn merge<'r>(
        &self,
        reply: &'r [u8],
        mut each: impl FnMut(usize, Lookup<'r>),
    ) -> Result<(), ReplyError> {
        let mut items = MultiReply::new(reply)?;
        for &place in &self.places {
            let item = items.next().ok_or(ReplyError::Truncated { len_bytes: reply.len() })??;
            each(place, item);
        }
        match items.next() {
            None => Ok(()),
            Some(_) => Err(ReplyError::Truncated { len_bytes: reply.len() }),
        }
    }
}

impl Split {
    /// Divides `keys` by owner into requests of at most [`MULTI_KEYS_MAX`] keys.
    ///
    /// # Errors
    /// [`KeyError`] for the first invalid key; there are no requests then.
    pub fn split(&mut self, router: &Router, keys: &[&[u8]]) -> Result<&[PartRequest], KeyError> {
        self.used = 0;
        for (place, bytes) in keys.iter().enumerate() {
            let partition = match router.key(bytes) {
                Ok(key) => router.owner(&key),
                Err(error) => {
                    self.used = 0;
                    return Err(error);
                }
            };
            self.open_request(partition).places.push(place);
        }
        Ok(&self.requests[..self.used])
    }

    /// Returns a request to `partition` that has room, or a new one.
    fn open_request(&mut self, partition: u32) -> &mut PartRequest {
        let has_room = |request: &PartRequest| {
            request.partition == partition && request.places.len() < usize::from(MULTI_KEYS_MAX)
        };
        let index = self.requests[..self.used].iter().position(has_room).unwrap_or_else(|| {
            if self.used == self.requests.len() {
                self.requests.push(PartRequest::default());
            }
            self.requests[self.used].partition = partition;
            self.requests[self.used].places.clear();
            self.used += 1;
            self.used - 1
        });
        &mut self.requests[index]
    }
}
