//! Types, methods and parameters of one source file.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use syn::visit::{self, Visit};

use crate::circles::is_for_tests;

/// Folders that do not belong to the product.
const OUTSIDE: [&str; 4] = ["fuzz", "lab", "tests", "xtask"];

/// A file in a crate's `src`, without test code.
#[derive(Debug, Default)]
pub struct Source {
    /// The crate's folder.
    pub folder: String,
    /// Path relative to the workspace.
    pub file: String,
    /// Names of the structs, enums, unions and traits in the file.
    pub types: Vec<String>,
    pub methods: Vec<Method>,
    /// `FILE: FUNCTION` for each parameter that is a tuple pattern.
    pub tuples: Vec<String>,
}

/// A function of an `impl`.
#[derive(Debug)]
pub struct Method {
    /// Name of the type.
    pub of: String,
    pub name: String,
    /// Names of methods called on `self` or `Self`.
    pub calls: BTreeSet<String>,
}

/// Reads all sources of the product that git tracks, or that are new and not ignored.
pub fn read(root: &Path) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for file in crate::workspace::tracked(root)? {
        let name = file.to_str().with_context(|| file.display().to_string())?;
        let Some((folder, within)) = name.split_once("/src/") else { continue };
        let is_outside = OUTSIDE.iter().any(|it| folder.split('/').next() == Some(it));
        if !name.ends_with(".rs") || is_outside || is_test_file(within) {
            continue;
        }
        // git also lists files that were deleted without a commit.
        let Ok(text) = std::fs::read_to_string(root.join(&file)) else { continue };
        let code = syn::parse_file(&text).with_context(|| name.to_owned())?;
        sources.push(Source::of(folder.into(), name.into(), &code));
    }
    Ok(sources)
}

/// Returns whether a file contains only tests, by its path: `tests.rs`, `x_tests.rs`, a folder
/// `tests`.
fn is_test_file(within: &str) -> bool {
    let mut parts = within.trim_end_matches(".rs").split('/');
    parts.any(|part| matches!(part, "test" | "tests") || part.ends_with("_tests"))
}

impl Source {
    pub fn of(folder: String, file: String, code: &syn::File) -> Self {
        let mut source = Self { folder, file, ..Self::default() };
        Items { source: &mut source }.visit_file(code);
        source
    }
}

/// Visits items except those for tests.
struct Items<'a> {
    source: &'a mut Source,
}

impl Items<'_> {
    fn signature(&mut self, signature: &syn::Signature) {
        let is_tuple = |input: &&syn::FnArg| match input {
            syn::FnArg::Typed(typed) => matches!(*typed.pat, syn::Pat::Tuple(_)),
            syn::FnArg::Receiver(_) => false,
        };
        for _ in signature.inputs.iter().filter(is_tuple) {
            self.source.tuples.push(format!("{}: {}", self.source.file, signature.ident));
        }
    }
}

impl<'ast> Visit<'ast> for Items<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let (name, attributes) = match item {
            syn::Item::Struct(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Enum(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Union(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Trait(item) => (Some(&item.ident), &item.attrs),
            syn::Item::Mod(item) => (None, &item.attrs),
            syn::Item::Impl(item) => (None, &item.attrs),
            syn::Item::Fn(item) => (None, &item.attrs),
            _ => return,
        };
        if !is_for_tests(attributes) {
            self.source.types.extend(name.map(ToString::to_string));
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.signature(&item.sig);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.signature(&item.sig);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let syn::Type::Path(path) = &*item.self_ty else { return };
        let Some(of) = path.path.segments.last().map(|part| part.ident.to_string()) else { return };
        for item in &item.items {
            let syn::ImplItem::Fn(function) = item else { continue };
            if is_for_tests(&function.attrs) {
                continue;
            }
            self.signature(&function.sig);
            let mut calls = Calls::default();
            calls.visit_block(&function.block);
            let name = function.sig.ident.to_string();
            self.source.methods.push(Method { of: of.clone(), name, calls: calls.0 });
        }
    }
}

/// Collects the methods that a body calls on its own type.
#[derive(Debug, Default)]
struct Calls(BTreeSet<String>);

impl<'ast> Visit<'ast> for Calls {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if matches!(&*call.receiver, syn::Expr::Path(path) if path.path.is_ident("self")) {
            self.0.insert(call.method.to_string());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() == 2 && path.segments[0].ident == "Self" {
            self.0.insert(path.segments[1].ident.to_string());
        }
        visit::visit_path(self, path);
    }

    /// Macro arguments are tokens, so search for the tokens of a call: `self . name (`.
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let text = call.tokens.to_string();
        for (at, _) in text.match_indices("self") {
            let behind = text[at + 4..].trim_start();
            let Some(behind) = behind.strip_prefix('.') else { continue };
            let behind = behind.trim_start();
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            let len = behind.find(|c| !is_name(c)).unwrap_or(behind.len());
            if behind[len..].trim_start().starts_with('(') {
                self.0.insert(behind[..len].to_owned());
            }
        }
    }
}
