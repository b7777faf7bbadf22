//! A service trait: its options, its methods and their numbers.

use std::collections::HashMap;

use proc_macro2::TokenStream;
use syn::parse::Parser;
use syn::{Error, Ident, ItemTrait, LitInt, Result, TraitItem, Visibility};

use crate::method::Method;

/// Maximum number of a method. Higher numbers are reserved for the library.
const NUMBER_MAX: u16 = 0xfeff;

/// A trait with the attribute.
pub struct Service {
    pub version: u32,
    pub visibility: Visibility,
    pub name: Ident,
    pub attributes: Vec<syn::Attribute>,
    pub methods: Vec<Method>,
}

impl Service {
    /// Parses the options of the attribute, and the trait.
    ///
    /// # Errors
    /// Returns an error at the offending token if the trait cannot be a service.
    pub fn read(options: TokenStream, item: TokenStream) -> Result<Self> {
        let version = version(options)?;
        let item: ItemTrait = syn::parse2(item)?;
        if !item.generics.params.is_empty() || item.generics.where_clause.is_some() {
            return Err(Error::new_spanned(&item.generics, "a service has no generic parameters"));
        }
        if !item.supertraits.is_empty() {
            return Err(Error::new_spanned(&item.supertraits, "a service has no supertraits"));
        }
        let mut methods = item.items.iter().map(method).collect::<Result<Vec<_>>>()?;
        if methods.is_empty() {
            return Err(Error::new_spanned(&item.ident, "a service has methods; this one has none"));
        }
        number(&mut methods)?;
        let ItemTrait { vis: visibility, ident: name, attrs: attributes, .. } = item;
        Ok(Self { version, visibility, name, attributes, methods })
    }
}

/// Parses `version = 2`; the default is 1.
fn version(options: TokenStream) -> Result<u32> {
    let mut version = 1;
    let parser = syn::meta::parser(|meta| {
        if !meta.path.is_ident("version") {
            return Err(meta.error("the only option of a service is `version = N`"));
        }
        version = meta.value()?.parse::<LitInt>()?.base10_parse()?;
        Ok(())
    });
    parser.parse2(options)?;
    Ok(version)
}

fn method(item: &TraitItem) -> Result<Method> {
    match item {
        TraitItem::Fn(function) => Method::read(function),
        other => Err(Error::new_spanned(other, "a service has methods only")),
    }
}

/// Numbers the methods that have no explicit number: one more than the previous method.
fn number(methods: &mut [Method]) -> Result<()> {
    let mut next = 1;
    let mut taken: HashMap<u16, String> = HashMap::new();
    for method in methods {
        let number = method.number.unwrap_or(next);
        if !(1..=NUMBER_MAX).contains(&number) {
            let why = format!("method {number}: numbers go from 1 to {NUMBER_MAX}");
            return Err(Error::new_spanned(&method.name, why));
        }
        if let Some(other) = taken.insert(number, method.name.to_string()) {
            let why = format!("`{other}` has the number {number}, too; write #[method(N)] with another one");
            return Err(Error::new_spanned(&method.name, why));
        }
        method.number = Some(number);
        next = number + 1;
    }
    Ok(())
}
