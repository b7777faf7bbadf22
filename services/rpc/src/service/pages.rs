//! Streams of results in pages: the server's state between two pages, and the format of a page.
//!
//! A page consists of the stream's number u32, 0 if this is its last page; the number of items u32; the items.

use std::collections::HashMap;

use serde::Serialize;

use super::codec::encode;
use crate::error::HandlerError;
use crate::wire::Status;

/// Maximum number of items of a page.
const PAGE_ITEMS: u32 = 256;
/// Number of bytes at which a page is sent.
const PAGE_BYTES: usize = 16 << 10;
/// Maximum number of open streams of one client, and of all clients of a server thread.
const STREAMS_OF_CLIENT_MAX: usize = 64;
const STREAMS_MAX: usize = 4_096;
/// Length in bytes of a page's head, in front of its items.
pub const PAGE_HEAD_BYTES: usize = 8;

/// Appends the next item; returns `false` if there is none.
type NextItem = Box<dyn FnMut(&mut Vec<u8>) -> Result<bool, String> + Send>;

/// The streams of a server thread.
#[derive(Default)]
pub struct Streams {
    /// Key: connection and stream number.
    open: HashMap<(u32, u32), NextItem>,
    last: u32,
}

impl Streams {
    /// Checks that a client may begin another stream.
    ///
    /// # Errors
    /// Returns an error with a message if it may not. The method has not run then.
    pub fn may_begin(&self, connection: u32) -> Result<(), HandlerError> {
        let refused = |message| Err(HandlerError { status: Status::OVERLOADED, message });
        if self.open.len() >= STREAMS_MAX {
            return refused(format!("{STREAMS_MAX} streams of this server thread are not at their end"));
        }
        let of_client = self.open.keys().filter(|(of, _)| *of == connection).count();
        if of_client >= STREAMS_OF_CLIENT_MAX {
            return refused(format!("{of_client} streams of this client are not at their end; drop some"));
        }
        Ok(())
    }

    /// Appends the first page, and stores the rest of the stream.
    ///
    /// # Errors
    /// Returns an error if an item cannot be encoded.
    pub fn begin<I>(&mut self, connection: u32, items: I, page: &mut Vec<u8>) -> Result<(), String>
    where
        I: Iterator + Send + 'static,
        I::Item: Serialize,
    {
        let mut items = items;
        let next = move |out: &mut Vec<u8>| match items.next() {
            Some(item) => encode(&item, out).map(|()| true),
            None => Ok(false),
        };
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && !self.open.contains_key(&(connection, self.last)) {
                return self.fill((connection, self.last), Box::new(next), page);
            }
        }
    }

    /// Appends the next page of a stream.
    ///
    /// # Errors
    /// Returns `None` if there is no such stream; otherwise the reason why an item cannot be encoded.
    pub fn next(&mut self, connection: u32, number: u32, page: &mut Vec<u8>) -> Result<(), Option<String>> {
        let next = self.open.remove(&(connection, number)).ok_or(None)?;
        self.fill((connection, number), next, page).map_err(Some)
    }

    fn fill(&mut self, key: (u32, u32), mut next: NextItem, page: &mut Vec<u8>) -> Result<(), String> {
        let head_at = page.len();
        page.extend_from_slice(&[0; PAGE_HEAD_BYTES]);
        let (mut count, mut number) = (0u32, key.1);
        while count < PAGE_ITEMS && page.len() - head_at < PAGE_BYTES {
            if !next(page)? {
                number = 0;
                break;
            }
            count += 1;
        }
        page[head_at..head_at + 4].copy_from_slice(&number.to_le_bytes());
        page[head_at + 4..head_at + PAGE_HEAD_BYTES].copy_from_slice(&count.to_le_bytes());
        if number != 0 {
            self.open.insert(key, next);
        }
        Ok(())
    }

    /// Discards a stream that the client does not need any more.
    pub fn end(&mut self, connection: u32, number: u32) {
        self.open.remove(&(connection, number));
    }

    /// Discards the streams of a closed connection.
    pub fn closed(&mut self, connection: u32) {
        self.open.retain(|(of, _), _| *of != connection);
    }
}

/// Decodes a page's head, and returns its items.
pub fn read_head(page: &[u8]) -> Result<(u32, u32, &[u8]), String> {
    let (head, items) = page.split_first_chunk::<PAGE_HEAD_BYTES>().ok_or("a page without a head")?;
    let head = u64::from_le_bytes(*head);
    let (stream, count) = (head as u32, (head >> 32) as u32);
    if count > PAGE_ITEMS {
        return Err(format!("a page of {count} items; at most {PAGE_ITEMS}"));
    }
    Ok((stream, count, items))
}
