//! A method of a service as written in the trait.

use quote::ToTokens;
use syn::{
    Attribute, Error, FnArg, GenericArgument, Ident, LitInt, Pat, PathArguments, Result, ReturnType,
    TraitItemFn, Type, TypeParamBound,
};

/// Kind of execution of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Runs on the server's thread.
    Now,
    /// Runs as a task.
    Async,
    /// Returns an iterator, whose items are sent in pages.
    Stream,
}

/// A method.
pub struct Method {
    pub kind: Kind,
    pub name: Ident,
    pub number: Option<u16>,
    /// Attributes other than `#[method]`, mostly documentation.
    pub attributes: Vec<Attribute>,
    pub arguments: Vec<(Ident, Type)>,
    /// Return type as written.
    pub returns: Type,
    /// Type of the value or of the items, and type of the error.
    pub value: Type,
    pub error: Type,
}

impl Method {
    pub fn read(function: &TraitItemFn) -> Result<Self> {
        let signature = &function.sig;
        if let Some(body) = &function.default {
            return Err(Error::new_spanned(body, "a method of a service has no body here"));
        }
        if !signature.generics.params.is_empty() {
            return Err(Error::new_spanned(&signature.generics, "a method of a service is not generic"));
        }
        let (number, attributes) = read_attributes(&function.attrs)?;
        let mut inputs = signature.inputs.iter();
        match inputs.next() {
            Some(FnArg::Receiver(receiver)) if is_shared(receiver) => {}
            _ => {
                let why = "a method of a service takes `&self` first: all threads of a server share it";
                return Err(Error::new_spanned(&signature.ident, why));
            }
        }
        let arguments = inputs.map(argument).collect::<Result<_>>()?;
        let ReturnType::Type(_, returns) = &signature.output else {
            return Err(Error::new_spanned(&signature.ident, MUST_BE_RESULT));
        };
        let (value, error) = result(returns)?;
        let item = iterator_item(&value)?;
        let kind = match (&item, signature.asyncness) {
            (Some(_), Some(_)) => {
                let why = "a method with a stream of results is no async fn: its iterator runs on the server's thread";
                return Err(Error::new_spanned(&signature.ident, why));
            }
            (Some(_), None) => Kind::Stream,
            (None, Some(_)) => Kind::Async,
            (None, None) => Kind::Now,
        };
        let name = signature.ident.clone();
        let value = item.unwrap_or(value);
        Ok(Self { kind, name, number, attributes, arguments, returns: (**returns).clone(), value, error })
    }

    /// Returns the signature on which client and server must agree, as text.
    pub fn signature(&self) -> String {
        let arguments: Vec<String> =
            self.arguments.iter().map(|(name, of)| format!("{name}: {}", text(of))).collect();
        let stream = if self.kind == Kind::Stream { "stream of " } else { "" };
        let (value, error) = (text(&self.value), text(&self.error));
        format!("fn {}({}) -> {stream}{value}, or {error}", self.name, arguments.join(", "))
    }
}

/// Returns a type as text without white space, which depends on the compiler.
fn text(of: &Type) -> String {
    of.to_token_stream().to_string().split_whitespace().collect()
}

const MUST_BE_RESULT: &str = "a method of a service returns `Result<value, error>`";

fn is_shared(receiver: &syn::Receiver) -> bool {
    receiver.colon_token.is_none() && receiver.reference.is_some() && receiver.mutability.is_none()
}

/// Splits the number in `#[method(7)]` from all other attributes.
fn read_attributes(attributes: &[Attribute]) -> Result<(Option<u16>, Vec<Attribute>)> {
    let (mut number, mut others) = (None, Vec::new());
    for attribute in attributes {
        if !attribute.path().is_ident("method") {
            others.push(attribute.clone());
            continue;
        }
        let literal: LitInt = attribute.parse_args()?;
        if number.replace(literal.base10_parse::<u16>()?).is_some() {
            return Err(Error::new_spanned(attribute, "a method has one number"));
        }
    }
    Ok((number, others))
}

fn argument(input: &FnArg) -> Result<(Ident, Type)> {
    let FnArg::Typed(input) = input else {
        return Err(Error::new_spanned(input, "`self` comes first"));
    };
    let Pat::Ident(pattern) = &*input.pat else {
        return Err(Error::new_spanned(&input.pat, "an argument has a name"));
    };
    if let Type::Reference(reference) = &*input.ty {
        return Err(Error::new_spanned(reference, "arguments travel: take an owned value, not a reference"));
    }
    Ok((pattern.ident.clone(), (*input.ty).clone()))
}

/// Returns the two types of a `Result`.
fn result(returns: &Type) -> Result<(Type, Type)> {
    let wrong = || Error::new_spanned(returns, MUST_BE_RESULT);
    let Type::Path(path) = returns else { return Err(wrong()) };
    let segment = path.path.segments.last().filter(|segment| segment.ident == "Result").ok_or_else(wrong)?;
    let PathArguments::AngleBracketed(types) = &segment.arguments else { return Err(wrong()) };
    let types: Vec<&GenericArgument> = types.args.iter().collect();
    match types[..] {
        [GenericArgument::Type(value), GenericArgument::Type(error)] => Ok((value.clone(), error.clone())),
        _ => Err(wrong()),
    }
}

/// Returns `T` of an `impl Iterator<Item = T> + …`; `None` for any other type.
fn iterator_item(value: &Type) -> Result<Option<Type>> {
    let Type::ImplTrait(bounds) = value else { return Ok(None) };
    for bound in &bounds.bounds {
        let TypeParamBound::Trait(bound) = bound else { continue };
        let Some(segment) = bound.path.segments.last().filter(|segment| segment.ident == "Iterator") else {
            continue;
        };
        let PathArguments::AngleBracketed(arguments) = &segment.arguments else { continue };
        for argument in &arguments.args {
            if let GenericArgument::AssocType(item) = argument
                && item.ident == "Item"
            {
                return Ok(Some(item.ty.clone()));
            }
        }
    }
    Err(Error::new_spanned(value, "a stream of results is an `impl Iterator<Item = T> + Send + 'static`"))
}
