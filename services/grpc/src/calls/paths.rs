//! Methods' paths go over a stream once; then a number stands for them.

use std::collections::HashMap;
use std::sync::Arc;

use http::uri::PathAndQuery;

use crate::frame::{Garbled, Path};

/// So many paths have numbers; further ones are spelled out in each call.
const PATHS_MAX: usize = 256;

/// The client's numbers.
#[derive(Default)]
pub(super) struct Numbers(HashMap<PathAndQuery, u16>);

impl Numbers {
    /// How a call that is sent now names its path.
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

/// What the server was told: paths, and which of them are answered directly.
#[derive(Default)]
pub(super) struct Known {
    paths: Vec<(PathAndQuery, Option<usize>)>,
    direct: Arc<DirectPaths>,
}

impl Known {
    pub fn new(direct: Arc<DirectPaths>) -> Self {
        Self { paths: Vec::new(), direct }
    }

    /// The path of a call, and the number of its method if that is answered directly.
    pub fn find(&mut self, path: Path<'_>) -> Result<(PathAndQuery, Option<usize>), Garbled> {
        let parse = |text: &str| {
            let path = text.starts_with('/').then(|| PathAndQuery::try_from(text).ok()).flatten();
            let path = path.ok_or(Garbled("a path that is none"))?;
            let method = self.direct.get(&path).copied();
            Ok((path, method))
        };
        match path {
            Path::Known(number) => {
                self.paths.get(usize::from(number)).cloned().ok_or(Garbled("a path that was not defined"))
            }
            Path::Literal(text) => parse(text),
            Path::Defined(number, text) => {
                if usize::from(number) != self.paths.len() || self.paths.len() >= PATHS_MAX {
                    return Err(Garbled("a path with the wrong number"));
                }
                let path = parse(text)?;
                self.paths.push(path.clone());
                Ok(path)
            }
        }
    }
}
