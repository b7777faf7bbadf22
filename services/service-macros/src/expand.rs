//! Generated code: the trait, a server, two clients.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::Result;

use crate::method::{Kind, Method};
use crate::service::Service;

/// Generates all code of a service.
///
/// # Errors
/// Like [`Service::read`].
pub fn service(options: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let service = Service::read(options, item)?;
    let parts = [described(&service), server(&service), blocking(&service), asynchronous(&service)];
    Ok(quote!(#(#parts)*))
}

/// Returns the path of the library module that generated code calls.
fn library() -> TokenStream {
    quote!(::farcall::rpc::service)
}

/// Returns the FNV-1a hash of the properties on which both ends must agree.
fn fingerprint(service: &Service, method: &Method) -> u32 {
    let text = format!("{} {} {}", service.name, service.version, method.signature());
    text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Generates the trait that the implementation of the service implements.
fn described(service: &Service) -> TokenStream {
    let Service { visibility, name, attributes, methods, .. } = service;
    let functions = methods.iter().map(|method| {
        let Method { name, attributes, returns, .. } = method;
        let arguments = method.arguments.iter().map(|(name, of)| quote!(#name: #of));
        let returns = match method.kind {
            Kind::Async => quote!(impl ::core::future::Future<Output = #returns> + ::core::marker::Send),
            Kind::Now | Kind::Stream => quote!(#returns),
        };
        quote!(#(#attributes)* fn #name(&self #(, #arguments)*) -> #returns;)
    });
    quote! {
        #(#attributes)*
        #visibility trait #name: ::core::marker::Send + ::core::marker::Sync + 'static {
            #(#functions)*
        }
    }
}

fn server(service: &Service) -> TokenStream {
    let Service { visibility, name, methods, .. } = service;
    let (library, description) = (library(), description(service));
    let server = format_ident!("{name}Server");
    let arms = methods.iter().map(|method| {
        let (number, function) = (method.number, &method.name);
        let fingerprint = fingerprint(service, method);
        let names: Vec<_> = method.arguments.iter().map(|(name, _)| name).collect();
        let types = method.arguments.iter().map(|(_, of)| of);
        let answer = match method.kind {
            Kind::Now => quote!(incoming.answer(&#name::#function(&*self.0 #(, #names)*))),
            Kind::Async => quote! {{
                let service = ::std::sync::Arc::clone(&self.0);
                incoming.spawn(async move { #name::#function(&*service #(, #names)*).await })
            }},
            Kind::Stream => quote!(incoming.stream(|| #name::#function(&*self.0 #(, #names)*))),
        };
        quote! {
            #number => {
                let (#(#names,)*): (#(#types,)*) = incoming.arguments(#fingerprint)?;
                #answer
            }
        }
    });
    let is_async = methods.iter().any(|method| method.kind == Kind::Async);
    let doc = format!("Serves a [`{name}`]: for `ServerBuilder::serve`.");
    quote! {
        #[doc = #doc]
        #visibility struct #server<S>(::std::sync::Arc<S>);

        impl<S: #name> #server<S> {
            /// Creates the server of `service`, which all threads share.
            #[allow(dead_code)]
            #visibility fn new(service: S) -> Self {
                Self(::std::sync::Arc::new(service))
            }
        }

        impl<S> ::core::clone::Clone for #server<S> {
            fn clone(&self) -> Self {
                Self(::std::sync::Arc::clone(&self.0))
            }
        }

        impl<S: #name> #library::Service for #server<S> {
            const DESCRIPTION: #library::Description = #description;
            const IS_ASYNC: bool = #is_async;

            fn dispatch(
                &self,
                incoming: #library::Incoming<'_, '_>,
            ) -> ::core::result::Result<(), #library::HandlerError> {
                match incoming.method() {
                    #(#arms)*
                    _ => incoming.unknown(),
                }
            }
        }
    }
}

/// Generates the description on which both ends must agree.
fn description(service: &Service) -> TokenStream {
    let (library, text, version) = (library(), service.name.to_string(), service.version);
    let methods = service.methods.iter().map(|method| {
        let (number, name, signature) = (method.number, method.name.to_string(), method.signature());
        let fingerprint = fingerprint(service, method);
        quote!(#library::Method { number: #number, name: #name, signature: #signature, fingerprint: #fingerprint })
    });
    quote!(#library::Description { name: #text, version: #version, methods: &[#(#methods),*] })
}

fn blocking(service: &Service) -> TokenStream {
    let Service { visibility, name, methods, .. } = service;
    let (library, description) = (library(), description(service));
    let client = format_ident!("{name}Client");
    let functions = methods.iter().map(|method| {
        let Method { name, attributes, value, error, number, .. } = method;
        let fingerprint = fingerprint(service, method);
        let arguments = method.arguments.iter().map(|(name, of)| quote!(#name: #of));
        let names = method.arguments.iter().map(|(name, _)| name);
        let (call, answer) = match method.kind {
            Kind::Stream => (quote!(stream), quote!(#library::Pages<'_, #value>)),
            Kind::Now | Kind::Async => (quote!(call), quote!(#value)),
        };
        quote! {
            #(#attributes)*
            #visibility fn #name(
                &mut self #(, #arguments)*
            ) -> ::core::result::Result<#answer, #library::Failed<#error>> {
                self.0.#call(#number, #fingerprint, &(#(#names,)*))
            }
        }
    });
    let doc = format!("Calls a [`{name}`] and waits.");
    quote! {
        #[doc = #doc]
        #[allow(dead_code)]
        #[derive(Debug)]
        #visibility struct #client(#library::TypedClient);

        #[allow(dead_code)]
        impl #client {
            /// The description that the client requires of a server.
            #visibility const DESCRIPTION: #library::Description = #description;

            /// Connects, and checks that the server has the same methods.
            ///
            /// # Errors
            /// As `Client::connect`; also if the server has a different service, with the difference as text.
            #visibility fn connect(
                nic: &#library::Nic,
                address: impl ::core::convert::Into<::std::string::String>,
                options: #library::ClientOptions,
            ) -> ::core::result::Result<Self, #library::ServiceError> {
                #library::TypedClient::connect(nic, address, options, &Self::DESCRIPTION).map(Self)
            }

            #(#functions)*
        }

        impl ::core::ops::Deref for #client {
            type Target = #library::TypedClient;

            fn deref(&self) -> &#library::TypedClient {
                &self.0
            }
        }

        impl ::core::ops::DerefMut for #client {
            fn deref_mut(&mut self) -> &mut #library::TypedClient {
                &mut self.0
            }
        }
    }
}

fn asynchronous(service: &Service) -> TokenStream {
    let Service { visibility, name, methods, .. } = service;
    let library = library();
    let (client, blocking) = (format_ident!("{name}AsyncClient"), format_ident!("{name}Client"));
    let functions = methods.iter().map(|method| {
        let Method { name, attributes, value, error, number, .. } = method;
        let fingerprint = fingerprint(service, method);
        let arguments = method.arguments.iter().map(|(name, of)| quote!(#name: #of));
        let names = method.arguments.iter().map(|(name, _)| name);
        let (call, answer) = match method.kind {
            Kind::Stream => (quote!(stream), quote!(#library::AsyncPages<#value>)),
            Kind::Now | Kind::Async => (quote!(call), quote!(#value)),
        };
        quote! {
            #(#attributes)*
            #visibility async fn #name(
                &self #(, #arguments)*
            ) -> ::core::result::Result<#answer, #library::Failed<#error>> {
                self.0.#call(#number, #fingerprint, &(#(#names,)*)).await
            }
        }
    });
    let doc = format!("Calls a [`{name}`] from tasks. Clones share its connection.");
    quote! {
        #library::for_tasks! {
            #[doc = #doc]
            #[derive(Clone, Debug)]
            #[allow(dead_code)]
            #visibility struct #client(#library::TypedAsyncClient);

            #[allow(dead_code)]
            impl #client {
                /// Connects, and checks that the server has the same methods.
                ///
                /// # Errors
                /// As `AsyncClient::connect`; also if the server has a different service, with the difference as text.
                #visibility async fn connect(
                    nic: &#library::Nic,
                    address: impl ::core::convert::Into<::std::string::String>,
                    options: #library::ClientOptions,
                ) -> ::core::result::Result<Self, #library::ServiceError> {
                    let address = address.into();
                    #library::TypedAsyncClient::connect(nic, address, options, &#blocking::DESCRIPTION)
                        .await
                        .map(Self)
                }

                /// Returns the same client with other options for its calls.
                #visibility fn with_options(&self, options: #library::CallOptions) -> Self {
                    Self(self.0.with_options(options))
                }

                #(#functions)*
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(options: &str, item: &str) -> String {
        let parse = |text: &str| text.parse().expect("Rust tokens");
        service(parse(options), parse(item)).expect_err("it is refused").to_string()
    }

    #[test]
    fn rejects_invalid_services_with_a_message() {
        let method = |text: &str| refusal("", &format!("trait S {{ {text} }}"));
        assert_eq!(method("fn a(&self);"), "a method of a service returns `Result<value, error>`");
        assert_eq!(method("fn a(&self) -> u32;"), "a method of a service returns `Result<value, error>`");
        assert_eq!(
            method("fn a(&self) -> io::Result<u32>;"),
            "a method of a service returns `Result<value, error>`"
        );
        assert!(method("fn a() -> Result<u32, u32>;").contains("takes `&self` first"));
        assert!(method("fn a(&mut self) -> Result<u32, u32>;").contains("takes `&self` first"));
        assert!(method("fn a(self) -> Result<u32, u32>;").contains("takes `&self` first"));
        assert!(method("fn a(&self, name: &str) -> Result<u32, u32>;").contains("owned value"));
        assert!(method("fn a(&self, (x, y): (u32, u32)) -> Result<u32, u32>;").contains("has a name"));
        assert!(method("fn a<T>(&self, x: T) -> Result<u32, u32>;").contains("not generic"));
        assert!(method("fn a(&self) -> Result<u32, u32> { Ok(1) }").contains("no body"));
        assert!(method("fn a(&self) -> Result<impl Clone, u32>;").contains("impl Iterator<Item = T>"));
        assert!(
            method("async fn a(&self) -> Result<impl Iterator<Item = u8> + Send, u32>;")
                .contains("no async fn")
        );
        assert!(method("const A: u32;").contains("methods only"));
        assert!(method("").contains("this one has none"));
        assert!(
            refusal("", "trait S<T> { fn a(&self) -> Result<T, u32>; }").contains("no generic parameters")
        );
        assert!(refusal("", "trait S: Clone { fn a(&self) -> Result<u8, u32>; }").contains("no supertraits"));
        assert!(refusal("name = 1", "trait S { fn a(&self) -> Result<u8, u32>; }").contains("`version = N`"));
    }

    #[test]
    fn numbers_that_collide_or_are_none_are_refused() {
        let both = |first: &str, second: &str| {
            refusal(
                "",
                &format!(
                    "trait S {{ {first} fn a(&self) -> Result<u8, u8>; {second} fn b(&self) -> Result<u8, u8>; }}"
                ),
            )
        };
        assert_eq!(
            both("#[method(2)]", "#[method(2)]"),
            "`a` has the number 2, too; write #[method(N)] with another one"
        );
        assert!(both("#[method(0)]", "").contains("from 1 to 65279"));
        assert!(both("#[method(65279)]", "").contains("from 1 to 65279"));
        assert!(both("#[method(1)] #[method(3)]", "").contains("one number"));
        let by_order = "trait S { #[method(5)] fn a(&self) -> Result<u8, u8>; fn b(&self) -> Result<u8, u8>; \
            #[method(6)] fn c(&self) -> Result<u8, u8>; }";
        assert!(refusal("", by_order).contains("`b` has the number 6"));
    }

    #[test]
    fn the_fingerprint_follows_what_both_ends_must_agree_on() {
        let of = |options: &str, method: &str| {
            let item = format!("trait S {{ {method} }}").parse().expect("Rust tokens");
            let service = Service::read(options.parse().expect("options"), item).expect("a service");
            fingerprint(&service, &service.methods[0])
        };
        let first = of("", "fn a(&self, x: u32) -> Result<Vec<u8>, String>;");
        assert_eq!(first, of("", "/// Documented.\nfn a(&self, x: u32) -> Result<Vec < u8 >, String>;"));
        assert_eq!(first, of("version = 1", "async fn a(&self, x: u32) -> Result<Vec<u8>, String>;"));
        for other in [
            of("version = 2", "fn a(&self, x: u32) -> Result<Vec<u8>, String>;"),
            of("", "fn a(&self, x: u64) -> Result<Vec<u8>, String>;"),
            of("", "fn b(&self, x: u32) -> Result<Vec<u8>, String>;"),
            of("", "fn a(&self, y: u32) -> Result<Vec<u8>, String>;"),
            of("", "fn a(&self, x: u32) -> Result<Vec<u8>, u8>;"),
            of("", "fn a(&self, x: u32) -> Result<impl Iterator<Item = Vec<u8>> + Send, String>;"),
        ] {
            assert_ne!(first, other);
        }
    }
}
