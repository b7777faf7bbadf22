//! Compression of method paths: each path is sent once and then replaced by a number.

use std::collections::HashMap;
use std::sync::Arc;

use http::uri::PathAndQuery;

use crate::frame::{FrameError, Path};

/// Maximum number of numbered paths; further ones are sent as text in each call.
const PATHS_MAX: usize = 256;

/// Numbers assigned by the client.
#[derive(Default)]
pub(super) struct PathNumbers(HashMap<PathAndQuery, u16>);

impl PathNumbers {
    /// Returns the representation of `path` in the next call, and assigns a number to a new path.
    pub fn name<'a>(&mut self, path: &'a PathAndQuery) -> Path<'a> {
        if let Some(number) = self.0.get(path) {
            return Path::Known(*number);
        }
        let number = self.0.len();
        if number >= PATHS_MAX {
            return Path::Literal(path.as_str());
        }
        self.0.insert(path.clone(), number as u16);
        Path::Defined(number as u16, path.as_str())
    }
}

/// Numbers of the methods that are answered directly, by their paths.
pub(crate) type DirectPaths = HashMap<PathAndQuery, usize>;

/// Numbered paths received by the server, each with the index of its direct method if it has one.
#[derive(Default)]
pub(super) struct PathTable {
    paths: Vec<(PathAndQuery, Option<usize>)>,
    direct: Arc<DirectPaths>,
}

impl PathTable {
    pub fn new(direct: Arc<DirectPaths>) -> Self {
        Self { paths: Vec::new(), direct }
    }

    /// Returns the path of a call, and the index of its method if that is answered directly.
    pub fn find(&mut self, path: Path<'_>) -> Result<(PathAndQuery, Option<usize>), FrameError> {
        let parse = |text: &str| {
            let path = text.starts_with('/').then(|| PathAndQuery::try_from(text).ok()).flatten();
            let path = path.ok_or(FrameError("a path that is none"))?;
            let method = self.direct.get(&path).copied();
            Ok((path, method))
        };
        match path {
            Path::Known(number) => {
                self.paths.get(usize::from(number)).cloned().ok_or(FrameError("a path that was not defined"))
            }
            Path::Literal(text) => parse(text),
            Path::Defined(number, text) => {
                if usize::from(number) != self.paths.len() || self.paths.len() >= PATHS_MAX {
                    return Err(FrameError("a path with the wrong number"));
                }
                let path = parse(text)?;
                self.paths.push(path.clone());
                Ok(path)
            }
        }
    }
}
