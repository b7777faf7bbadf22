//! Client for the required calls of etcd over its JSON gateway (`/v3/...`), which encodes 64-bit numbers as strings and
//! bytes in base64.

use std::cell::Cell;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use thiserror::Error;
use ureq::Agent;

/// Timeout of a call to one server.
const CALL_MAX: Duration = Duration::from_secs(2);
/// Maximum length of a response in bytes: enough for the maximum number of records of maximum length, in base64.
const RESPONSE_BYTES_MAX: u64 = 8 << 20;

/// Reason why a call to etcd failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// No server responds.
    #[error("no etcd server answers: {0}")]
    Unreachable(String),
    /// A server refused the call.
    #[error("etcd at {endpoint} refuses: {why}")]
    Refused {
        /// Address of the server.
        endpoint: String,
        /// Its error message.
        why: String,
    },
    /// The response is invalid.
    #[error("what answers at {endpoint} is no etcd of version 3.4 or later: {why}")]
    NotEtcd {
        /// Address of the server.
        endpoint: String,
        /// Description of the error.
        why: String,
    },
}

/// Identifier of an etcd lease. When the lease expires without renewal, etcd deletes its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lease(String);

/// A key with its value.
pub(super) struct Pair {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

/// Client of one etcd cluster.
pub(super) struct Etcd {
    agent: Agent,
    endpoints: Vec<String>,
    /// Index of the server that responded last.
    last: Cell<usize>,
}

#[derive(Deserialize)]
struct Granted {
    #[serde(rename = "ID")]
    id: String,
}

#[derive(Deserialize)]
struct Alive {
    result: AliveResult,
}

#[derive(Deserialize)]
struct AliveResult {
    /// Omitted if the lease has expired.
    #[serde(rename = "TTL", default)]
    ttl: String,
}

#[derive(Deserialize)]
struct Found {
    /// Every etcd server sends a header, so its absence indicates another program.
    #[serde(rename = "header")]
    _header: IgnoredAny,
    #[serde(default)]
    kvs: Vec<FoundPair>,
}

#[derive(Deserialize)]
struct FoundPair {
    key: String,
    #[serde(default)]
    value: String,
}

impl Etcd {
    pub fn new(endpoints: Vec<String>) -> Self {
        let config = Agent::config_builder().timeout_global(Some(CALL_MAX)).http_status_as_error(false);
        // etcd is part of the cluster, so it is reached without a proxy.
        let agent = config.proxy(None).max_redirects(0).build().into();
        Self { agent, endpoints, last: Cell::new(0) }
    }

    /// Calls one server after another until one responds, beginning with the one that responded last.
    fn call<T: for<'de> Deserialize<'de>>(&self, path: &str, request: &Value) -> Result<T, EtcdError> {
        let first = self.last.get();
        let mut problems = Vec::new();
        for step in 0..self.endpoints.len() {
            let at = (first + step) % self.endpoints.len();
            let endpoint = &self.endpoints[at];
            match self.call_one(endpoint, path, request) {
                Ok(response) => {
                    self.last.set(at);
                    return response;
                }
                Err(error) => problems.push(format!("{endpoint}: {error}")),
            }
        }
        Err(EtcdError::Unreachable(problems.join("; ")))
    }

    /// Calls one server. The outer error means that the server is unreachable or temporarily unable to respond.
    fn call_one<T: for<'de> Deserialize<'de>>(
        &self,
        endpoint: &str,
        path: &str,
        request: &Value,
    ) -> Result<Result<T, EtcdError>, ureq::Error> {
        let url = format!("http://{endpoint}/v3/{path}");
        let mut response = self.agent.post(url).send(request.to_string())?;
        let status = response.status();
        if status.is_server_error() {
            // For example, the cluster currently has no leader.
            return Err(ureq::Error::StatusCode(status.as_u16()));
        }
        let bytes = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX).read_to_vec()?;
        let endpoint = endpoint.to_owned();
        if !status.is_success() {
            let said: Option<Value> = serde_json::from_slice(&bytes).ok();
            let why = said.and_then(|said| Some(said.get("error")?.as_str()?.to_owned()));
            let why = why.unwrap_or_else(|| status.to_string());
            return Ok(Err(EtcdError::Refused { endpoint, why }));
        }
        let parsed = serde_json::from_slice(&bytes);
        Ok(parsed.map_err(|error| EtcdError::NotEtcd { endpoint, why: error.to_string() }))
    }

    /// Creates a lease that expires after `term` without renewal.
    pub fn grant(&self, term: Duration) -> Result<Lease, EtcdError> {
        let request = json!({ "TTL": term.as_secs().to_string() });
        self.call("lease/grant", &request).map(|granted: Granted| Lease(granted.id))
    }

    /// Renews a lease. Returns false if it has expired.
    pub fn keep_alive(&self, lease: &Lease) -> Result<bool, EtcdError> {
        let alive: Alive = self.call("lease/keepalive", &json!({ "ID": lease.0 }))?;
        Ok(!matches!(alive.result.ttl.as_str(), "" | "0"))
    }

    /// Ends a lease, which deletes its keys.
    pub fn revoke(&self, lease: &Lease) -> Result<(), EtcdError> {
        self.call("lease/revoke", &json!({ "ID": lease.0 })).map(|_: Value| ())
    }

    /// Stores a value, under a lease if one is given.
    pub fn put(&self, key: &str, value: &[u8], lease: Option<&Lease>) -> Result<(), EtcdError> {
        let mut request = json!({ "key": STANDARD.encode(key), "value": STANDARD.encode(value) });
        if let Some(lease) = lease {
            request["lease"] = lease.0.clone().into();
        }
        self.call("kv/put", &request).map(|_: Value| ())
    }

    /// Deletes a key.
    pub fn delete(&self, key: &str) -> Result<(), EtcdError> {
        self.call("kv/deleterange", &json!({ "key": STANDARD.encode(key) })).map(|_: Value| ())
    }

    /// Returns the value of a key, or `None` if there is no such key.
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>, EtcdError> {
        let found = self.range(&json!({ "key": STANDARD.encode(key) }))?;
        Ok(found.into_iter().next().map(|pair| pair.value))
    }

    /// Returns at most `count_max` keys with this prefix, the oldest first.
    pub fn get_all(&self, prefix: &str, count_max: usize) -> Result<Vec<Pair>, EtcdError> {
        let mut end = prefix.as_bytes().to_vec();
        // The prefix is UTF-8, so its last byte is below 0xFF.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        self.range(&json!({
            "key": STANDARD.encode(prefix), "range_end": STANDARD.encode(end),
            "limit": count_max.to_string(), "sort_target": "CREATE", "sort_order": "ASCEND",
        }))
    }

    fn range(&self, request: &Value) -> Result<Vec<Pair>, EtcdError> {
        let found: Found = self.call("kv/range", request)?;
        let decode = |text: &str| {
            let endpoint = self.endpoints.join(",");
            STANDARD.decode(text).map_err(|error| EtcdError::NotEtcd { endpoint, why: error.to_string() })
        };
        let pair = |pair: FoundPair| Ok(Pair { key: decode(&pair.key)?, value: decode(&pair.value)? });
        found.kvs.into_iter().map(pair).collect()
    }
}
