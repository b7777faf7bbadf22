//! Description of a service, by which client and server are compared.

use serde::{Deserialize, Serialize};

use super::codec;

/// A service as described by the attribute.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Description {
    /// Its name.
    pub name: &'static str,
    /// Its version, as chosen by its author.
    pub version: u32,
    /// Its methods.
    pub methods: &'static [Method],
}

/// A method of a service.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Method {
    /// Its number.
    pub number: u16,
    /// Its name.
    pub name: &'static str,
    /// Its arguments and results, for users.
    pub signature: &'static str,
    /// Hash of everything that both ends must agree on.
    pub fingerprint: u32,
}

/// A description received from a server.
#[derive(Debug, Deserialize)]
struct ReceivedDescription {
    name: String,
    version: u32,
    methods: Vec<ReceivedMethod>,
}

#[derive(Debug, Deserialize)]
struct ReceivedMethod {
    number: u16,
    name: String,
    signature: String,
    fingerprint: u32,
}

impl Description {
    /// Checks that a server with this description has all methods of the service. It may have more.
    ///
    /// # Errors
    /// Returns a description of the difference.
    pub(super) fn check(&self, described: &[u8]) -> Result<(), String> {
        let received: ReceivedDescription = codec::decode(described)
            .map_err(|error| format!("the server does not describe its service ({error})"))?;
        if (received.name.as_str(), received.version) != (self.name, self.version) {
            return Err(format!(
                "the server serves {:?}, version {}; this client calls {:?}, version {}",
                received.name, received.version, self.name, self.version
            ));
        }
        self.methods.iter().try_for_each(|method| method.check(&received.methods))
    }
}

impl Method {
    fn check(&self, received: &[ReceivedMethod]) -> Result<(), String> {
        let Self { number, name, signature, fingerprint } = self;
        let Some(there) = received.iter().find(|there| there.number == *number) else {
            let elsewhere = received.iter().find(|there| there.name == *name);
            let hint =
                elsewhere.map_or(String::new(), |there| format!("; it has one as number {}", there.number));
            return Err(format!("the server has no method {number}, `{name}`{hint}"));
        };
        if there.fingerprint == *fingerprint {
            return Ok(());
        }
        Err(format!("method {number} is `{signature}` here and `{}` at the server", there.signature))
    }
}
