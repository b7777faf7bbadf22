//! Parts of requests.

use std::ops::Range;

use crate::client::PAGE_BYTES;
use crate::client::recovery_file::End;

/// The part of a request that concerns one page, as ranges of the page and of the request.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub request: u32,
    pub of_page: Range<usize>,
    pub of_request: Range<usize>,
    /// The end of the request at which this part lies if it is, or was, only a part of a page.
    pub end: Option<End>,
}

impl Part {
    /// Creates a part that is a complete page, `of_request` bytes after the start of its request.
    pub const fn full_page(request: u32, of_request: usize) -> Self {
        Self { request, of_page: 0..PAGE_BYTES, of_request: of_request..of_request + PAGE_BYTES, end: None }
    }
}
