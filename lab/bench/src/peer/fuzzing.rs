//! Effect of bytes received from another host, without a socket or a process; for the fuzz target of this protocol.

use super::PeerError;
use super::control::{MESSAGE_LEN_BYTES_MAX, receive_up_to};
use super::listener::{REQUEST_LEN_BYTES_MAX, nic_of};
use super::remote_agent::{AgentRequest, Begun, GreetingCheck, check_greeting, read_greeting};
use crate::experiments::ready::Ready;
use crate::experiments::service::Service;
use crate::tasks::is_done_for_others;
use farcall::select::Selection;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Action of a server half for a client half.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParsedRequest {
    /// The request is refused: another release, invalid bytes, or a task that is not run for other hosts.
    Refused,
    /// The server half begins a run, or reports a processor time.
    Answered,
    /// The server half starts this program as a peer, whose task has the given length in bytes.
    Peer(usize),
    /// The server half starts this program with these arguments.
    Server(Vec<String>),
}

/// Returns the action of a server half without options of its own for the bytes of a client half.
pub fn parse_request(mut bytes: &[u8]) -> ParsedRequest {
    let is_alike = read_greeting(&mut bytes).is_ok_and(|said| check_greeting(&said) == GreetingCheck::Alike);
    let request: Result<AgentRequest, PeerError> = receive_up_to(bytes, REQUEST_LEN_BYTES_MAX);
    match request {
        Ok(_) if !is_alike => ParsedRequest::Refused,
        Ok(AgentRequest::Run | AgentRequest::CpuTime { .. }) => ParsedRequest::Answered,
        Ok(AgentRequest::Peer { order, .. }) if is_done_for_others(&order.kind) => {
            ParsedRequest::Peer(order.task.to_string().len())
        }
        Ok(AgentRequest::Serve { service, .. }) if service.check().is_ok() => {
            let nic = nic_of(&Selection::default(), &service.nic);
            let service = Service { nic, ..service };
            ParsedRequest::Server(service.args(IpAddr::V4(Ipv4Addr::LOCALHOST)))
        }
        Ok(AgentRequest::Peer { .. } | AgentRequest::Serve { .. }) | Err(_) => ParsedRequest::Refused,
    }
}

/// Returns whether a client half would accept the bytes as a reply to any of its requests.
pub fn is_an_answer(bytes: &[u8]) -> bool {
    fn of<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> bool {
        receive_up_to::<Result<T, String>>(bytes, MESSAGE_LEN_BYTES_MAX).is_ok()
    }
    of::<Begun>(bytes) || of::<u32>(bytes) || of::<(u32, Ready)>(bytes) || of::<Duration>(bytes)
}

/// Returns the greeting of a client half of this release.
pub fn greeting() -> String {
    super::remote_agent::greeting()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(text: &str) -> ParsedRequest {
        let len = u32::try_from(text.len()).unwrap().to_le_bytes();
        parse_request(&[greeting().as_bytes(), &len, text.as_bytes()].concat())
    }

    fn store(key_len_bytes: usize, front_end: &str) -> ParsedRequest {
        request(&format!(
            r#"{{"Serve":{{"run":7,"service":{{"nic":{{"provider":"ibv","device":"; reboot","gid_index":3}},
            "what":{{"Store":{{"front_end":{front_end},"records":100,"shape":{{"key_len_bytes":{key_len_bytes},
            "value_len_bytes_min":8,"value_len_bytes":32}}}}}}}}}}}}"#
        ))
    }

    #[test]
    fn a_server_half_starts_nothing_with_words_of_another_host() {
        let ParsedRequest::Server(args) = store(16, r#"{"Rival":"Farm"}"#) else {
            panic!("a store is served")
        };
        assert!(
            args.contains(&"ibv".to_owned()) && !args.iter().any(|arg| arg.contains("reboot")),
            "{args:?}"
        );
        assert_eq!(store(usize::MAX, r#"{"Rival":"Farm"}"#), ParsedRequest::Refused);
        assert_eq!(store(16, r#""Unix""#), ParsedRequest::Refused);
        let echo = |threads: u32| {
            request(&format!(
                r#"{{"Serve":{{"run":7,"service":{{"nic":{{"provider":"softnic"}},"what":{{"Echo":{{"threads":{threads}}}}}}}}}}}"#
            ))
        };
        assert!(matches!(echo(256), ParsedRequest::Server(_)));
        assert_eq!([echo(0), echo(257), echo(65_536)], [const { ParsedRequest::Refused }; 3]);
        let peer = |kind: &str| {
            request(&format!(
                r#"{{"Peer":{{"run":7,"order":{{"kind":"{kind}","task":{{}},"fds":[0],"own_nic":null}}}}}}"#
            ))
        };
        assert_eq!(peer("initiator"), ParsedRequest::Refused);
        assert_eq!(matches!(peer("issuer"), ParsedRequest::Peer(_)), cfg!(feature = "verbs"));
        assert_eq!(request(r#""Run""#), ParsedRequest::Answered);
        assert_eq!(parse_request(b"farcall-bench 1 0.0.1\n\x05\0\0\0\"Run\""), ParsedRequest::Refused);
    }
}
