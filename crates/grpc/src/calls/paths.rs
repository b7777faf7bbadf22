//! Methods' paths go over a stream once; then a number stands for them.

use std::collections::HashMap;

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

/// What the server was told.
#[derive(Default)]
pub(super) struct Known(Vec<PathAndQuery>);

impl Known {
    pub fn find(&mut self, path: Path<'_>) -> Result<PathAndQuery, Garbled> {
        let parse = |text: &str| {
            let path = text.starts_with('/').then(|| PathAndQuery::try_from(text).ok()).flatten();
            path.ok_or(Garbled("a path that is none"))
        };
        match path {
            Path::Known(number) => {
                self.0.get(usize::from(number)).cloned().ok_or(Garbled("a path that was not defined"))
            }
            Path::Literal(text) => parse(text),
            Path::Defined(number, text) => {
                if usize::from(number) != self.0.len() || self.0.len() >= PATHS_MAX {
                    return Err(Garbled("a path with the wrong number"));
                }
                let path = parse(text)?;
                self.0.push(path.clone());
                Ok(path)
            }
        }
    }
}
