//! Operations on many keys: calls to all partitions are in flight concurrently, up to the window of each.

use super::part::Part;
use super::{Change, KvClient, KvError, Write, change};
use crate::wire::{Lookup, Method, MultiItem};

impl KvClient {
    /// Stores many records. Calls `each` with the number of each record and its result, not always in order. The error
    /// of one record does not affect the others.
    pub fn put_many<'r>(
        &mut self,
        records: impl IntoIterator<Item = (&'r [u8], Write<'r>)>,
        mut each: impl FnMut(usize, Result<Change, KvError>),
    ) {
        for (place, (key, write)) in records.into_iter().enumerate() {
            let owner = match self.router.key(key) {
                Ok(key) => self.router.owner(&key) as usize,
                Err(error) => {
                    each(place, Err(error.into()));
                    continue;
                }
            };
            let part = &mut self.parts[owner];
            while !part.has_room() && finish_put(part, &mut each) {}
            self.request.clear();
            let request = write.put(key);
            request.encode(&mut self.request);
            if let Err(error) = part.begin(place, request.method().id(), &self.request) {
                each(place, Err(error.into()));
            }
        }
        for part in &mut self.parts {
            while part.is_busy() && finish_put(part, &mut each) {}
        }
    }

    /// Looks up many keys. Calls `each` with the index of each key and its item, not always in order.
    ///
    /// # Errors
    /// Returns the first failure. All results passed to `each` before are valid; the other keys were not looked up.
    pub fn get_many(
        &mut self,
        keys: &[&[u8]],
        mut each: impl FnMut(usize, Option<MultiItem<'_>>),
    ) -> Result<(), KvError> {
        let mut asked: Vec<&[u8]> = keys.to_vec();
        let mut places: Vec<usize> = (0..keys.len()).collect();
        // The server defers some keys if a reply becomes long, but never the first key of a request.
        while !asked.is_empty() {
            let mut put_off = Vec::new();
            self.get_round(&asked, |place, lookup| match lookup {
                Lookup::Found(item) => each(places[place], Some(item)),
                Lookup::Missed => each(places[place], None),
                Lookup::Deferred => put_off.push(place),
            })?;
            asked = put_off.iter().map(|place| asked[*place]).collect();
            places = put_off.iter().map(|place| places[*place]).collect();
        }
        Ok(())
    }

    /// Sends one MULTI_GET to each owner of `keys`, all in flight concurrently.
    fn get_round(&mut self, keys: &[&[u8]], mut each: impl FnMut(usize, Lookup<'_>)) -> Result<(), KvError> {
        let Self { parts, router, request, split, .. } = self;
        let requests = split.split(router, keys)?;
        let mut failed = None;
        let mut finish = |part: &mut Part| -> bool {
            let Some((number, result)) = part.wait() else { return false };
            let merged =
                result.map_err(KvError::from).and_then(|reply| Ok(requests[number].merge(reply, &mut each)?));
            if let Err(error) = merged {
                failed.get_or_insert(error);
            }
            true
        };
        for (number, asked) in requests.iter().enumerate() {
            let part = &mut parts[asked.partition as usize];
            while !part.has_room() && finish(part) {}
            request.clear();
            asked.encode(keys, request);
            if let Err(error) = part.begin(number, Method::MultiGet.id(), request) {
                // Calls in flight must complete before their numbers are reused.
                parts.iter_mut().for_each(|part| while part.is_busy() && part.wait().is_some() {});
                return Err(error.into());
            }
        }
        for part in parts.iter_mut() {
            while part.is_busy() && finish(part) {}
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Waits for a PUT to complete and passes its result to `each`. Returns whether one was in flight.
fn finish_put(part: &mut Part, each: &mut impl FnMut(usize, Result<Change, KvError>)) -> bool {
    let Some((place, result)) = part.wait() else { return false };
    each(place, result.map_err(KvError::from).and_then(change));
    true
}
