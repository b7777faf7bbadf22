//! Generates, for each service with unary methods, a direct client and a direct server in addition to tonic's
//! generated code. They use the same messages and the same server trait, and interoperate with tonic's generated code
//! at the other end. The difference is that short messages are encoded in the send buffer and decoded in the receive
//! buffer.
//!
//! In a `build.rs`, with file descriptors from any compiler of .proto files (protox needs no protoc):
//!
//! ```no_run
//! fn compile(files: prost_types::FileDescriptorSet) -> std::io::Result<()> {
//!     let tonic = tonic_prost_build::configure().build_transport(false);
//!     prost_build::Config::new()
//!         .service_generator(farcall_grpc_build::generator(tonic))
//!         .compile_fds(files)
//! }
//! ```
//!
//! For a service `Echo` this generates, in addition to `echo_client` and `echo_server`, a module `echo_direct` with
//! `EchoDirectClient`, created from a `farcall_grpc::Channel`, and `methods`, whose result is passed to
//! `farcall_grpc::Server::direct`. Streaming methods use tonic's client over the same channel.

#![forbid(unsafe_code)]

use prost_build::{Method, Service, ServiceGenerator};

/// Returns tonic's generator, as configured, combined with the one of this package. Do not use tonic's own compile
/// functions: they would replace the generator. Settings of messages belong to `prost_build::Config`.
pub fn generator(tonic: tonic_prost_build::Builder) -> Box<dyn ServiceGenerator> {
    Box::new(CombinedGenerator(tonic.service_generator()))
}

struct CombinedGenerator(Box<dyn ServiceGenerator>);

impl ServiceGenerator for CombinedGenerator {
    fn generate(&mut self, service: Service, out: &mut String) {
        let direct = direct_module(&service);
        self.0.generate(service, out);
        out.push_str(&direct);
    }

    fn finalize(&mut self, out: &mut String) {
        self.0.finalize(out);
    }

    fn finalize_package(&mut self, package: &str, out: &mut String) {
        self.0.finalize_package(package, out);
    }
}

/// Returns the path of a message type relative to a sibling module.
fn type_path(rust_type: &str) -> String {
    if rust_type == "()" || rust_type.starts_with("::") || rust_type.starts_with("crate::") {
        rust_type.to_owned()
    } else {
        format!("super::{rust_type}")
    }
}

/// Returns the module name that tonic uses for the service.
fn module_name(service: &str) -> String {
    let mut name = String::new();
    let mut letters = service.chars().peekable();
    while let Some(letter) = letters.next() {
        name.extend(letter.to_lowercase());
        if letters.peek().is_some_and(|next| next.is_uppercase()) {
            name.push('_');
        }
    }
    name
}

fn path(service: &Service, method: &Method) -> String {
    let dot = if service.package.is_empty() { "" } else { "." };
    format!("/{}{dot}{}/{}", service.package, service.proto_name, method.proto_name)
}

/// Returns the module with the direct client and server; an empty string if the service has no unary method.
fn direct_module(service: &Service) -> String {
    let unary = |method: &&Method| !method.client_streaming && !method.server_streaming;
    let methods: Vec<&Method> = service.methods.iter().filter(unary).collect();
    if methods.is_empty() {
        return String::new();
    }
    let calls: String = methods.iter().map(|method| client_method(service, method)).collect();
    let answers: String = methods.iter().map(|method| server_method(service, method)).collect();
    let (name, module) = (&service.name, module_name(&service.name));
    format!(
        r#"
/// Unary methods without tonic's codec.
pub mod {module}_direct {{
    /// Calls the unary methods of `{proto}`. Its clones share one connection.
    #[derive(Clone, Debug)]
    pub struct {name}DirectClient {{
        channel: farcall_grpc::Channel,
    }}

    impl {name}DirectClient {{
        /// A client over a channel, which others may use, too.
        pub fn new(channel: farcall_grpc::Channel) -> Self {{
            Self {{ channel }}
        }}
{calls}    }}

    /// Returns the unary methods of a service for a `farcall_grpc::Server`, which replies to them directly. The server
    /// must serve the same service, too: streamed, compressed and long calls use that.
    pub fn methods<T: super::{module}_server::{name}>(service: std::sync::Arc<T>) -> farcall_grpc::DirectMethods {{
        farcall_grpc::DirectMethods::new()
{answers}    }}
}}
"#,
        proto = service.proto_name,
    )
}

fn client_method(service: &Service, method: &Method) -> String {
    let comments: String =
        method.comments.leading.iter().map(|line| format!("        ///{line}\n")).collect();
    format!(
        r#"
{comments}        pub async fn {name}(
            &self,
            request: impl tonic::IntoRequest<{input}>,
        ) -> std::result::Result<tonic::Response<{output}>, tonic::Status> {{
            static PATH: std::sync::LazyLock<farcall_grpc::PathAndQuery> =
                std::sync::LazyLock::new(|| farcall_grpc::PathAndQuery::from_static("{path}"));
            self.channel.unary(&PATH, request.into_request()).await
        }}
"#,
        name = method.name,
        input = type_path(&method.input_type),
        output = type_path(&method.output_type),
        path = path(service, method),
    )
}

fn server_method(service: &Service, method: &Method) -> String {
    format!(
        r#"            .unary("{path}", {{
                let service = std::sync::Arc::clone(&service);
                move |request: tonic::Request<{input}>| {{
                    let service = std::sync::Arc::clone(&service);
                    async move {{ service.{name}(request).await }}
                }}
            }})
"#,
        path = path(service, method),
        input = type_path(&method.input_type),
        name = method.name,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_named_as_tonic_names_them() {
        for (service, expected) in [("Echo", "echo"), ("KeyValue", "key_value"), ("HTTPEcho", "h_t_t_p_echo")]
        {
            assert_eq!(module_name(service), expected);
        }
    }

    #[test]
    fn types_are_reached_from_the_module() {
        assert_eq!(type_path("Message"), "super::Message");
        assert_eq!(type_path("super::other::Message"), "super::super::other::Message");
        assert_eq!(type_path("::prost_types::Any"), "::prost_types::Any");
        assert_eq!(type_path("crate::Message"), "crate::Message");
        assert_eq!(type_path("()"), "()");
    }

    #[test]
    fn a_service_that_only_streams_has_no_direct_module() {
        let mut service = service(true);
        assert_eq!(direct_module(&service), "");
        service.methods.extend(self::service(false).methods);
        let module = direct_module(&service);
        assert!(module.contains("from_static(\"/one.two.Echo/Say\")"), "{module}");
        assert!(!module.contains("/one.two.Echo/Listen"), "{module}");
    }

    fn service(is_streaming: bool) -> Service {
        let name = if is_streaming { "Listen" } else { "Say" };
        let method = Method {
            name: name.to_lowercase(),
            proto_name: name.to_owned(),
            comments: Default::default(),
            input_type: "Message".to_owned(),
            output_type: "Message".to_owned(),
            input_proto_type: String::new(),
            output_proto_type: String::new(),
            options: Default::default(),
            client_streaming: false,
            server_streaming: is_streaming,
        };
        Service {
            name: "Echo".to_owned(),
            proto_name: "Echo".to_owned(),
            package: "one.two".to_owned(),
            comments: Default::default(),
            methods: vec![method],
            options: Default::default(),
        }
    }
}
