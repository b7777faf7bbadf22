//! The client's side of several partitions: split keys by owner, merge the answers.

use super::{Lookup, MULTI_KEYS_MAX, MultiReply, ReplyError, ReplySink, encode_multi_get};
use crate::key::{KeyError, Router};

/// Keys divided by owner, reusable from one multi-get to the next without allocating.
#[derive(Debug, Default)]
pub struct Split {
    /// For each request: the partition it goes to and the places of its keys in the caller's list.
    requests: Vec<PartRequest>,
    used: usize,
}

/// The keys of one MULTI_GET to one partition.
#[derive(Debug, Default)]
pub struct PartRequest {
    /// The partition to ask.
    pub partition: u32,
    places: Vec<usize>,
}

impl PartRequest {
    /// The places, in the caller's list, of the keys asked for here, in the order of the reply.
    pub fn places(&self) -> &[usize] {
        &self.places
    }

    /// Writes the MULTI_GET request; `keys` is the list that was split.
    pub fn encode(&self, keys: &[&[u8]], out: &mut impl ReplySink) {
        encode_multi_get(self.places.iter().map(|&place| keys[place]), out);
    }

    /// Reads the reply: calls `each` with every key's place and what became of it.
    ///
    /// # Errors
    /// [`ReplyError`] for a malformed reply or one with another number of items; what came before is reported.
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
    /// Divides `keys` by owner, in requests of at most [`MULTI_KEYS_MAX`] keys.
    ///
    /// # Errors
    /// [`KeyError`] for the first illegal key; then there are no requests.
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

    /// The latest request to `partition` that has room, or a new one.
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
