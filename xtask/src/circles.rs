//! Finds circles of files: each file uses the next one, and the last one uses the first. Files of a
//! circle can only be understood and moved together.
//!
//! Paths in `use` items and elsewhere count as uses. Paths in macro arguments and method calls are
//! not detected; for the latter, [`crate::structure`] has ceilings.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::visit::{self, Visit};

/// Maximum number of files in a circle. A folder's `mod.rs`, or `x.rs` beside a folder `x`, counts
/// as one file.
const FILES_MAX: usize = 3;

/// Files of a crate, by module path; that of the root is empty. A use of the root counts only if it
/// names an item defined there, because the root re-exports items of other files.
#[derive(Debug, Default)]
struct Modules {
    files: BTreeMap<Vec<String>, File>,
}

#[derive(Debug, Default)]
struct File {
    /// Paths that the file uses, starting at the crate's root.
    uses: BTreeSet<Vec<String>>,
    /// Names that the file re-exports by `use`, with their paths.
    gives: BTreeMap<String, Vec<String>>,
    /// Names of items that the file defines.
    has: BTreeSet<String>,
}

/// Adds a fault for each circle with more than [`FILES_MAX`] files. `package` is the crate's
/// folder, relative to `root`.
pub fn check(root: &Path, package: &str, faults: &mut Vec<String>) -> Result<()> {
    for name in ["src/lib.rs", "src/main.rs"] {
        let file = root.join(package).join(name);
        if !file.exists() {
            continue;
        }
        for circle in read(&file)?.circles() {
            if circle.len() > FILES_MAX {
                let (files, names) = (circle.len(), circle.join(", "));
                faults.push(format!("{package}: {files} files need each other: {names}"));
            }
        }
    }
    Ok(())
}

/// Reads all modules of a crate except test modules.
fn read(crate_root: &Path) -> Result<Modules> {
    let mut modules = Modules::default();
    let mut left = vec![(Vec::new(), crate_root.to_owned())];
    while let Some((path, file)) = left.pop() {
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let code = syn::parse_file(&text).with_context(|| file.display().to_string())?;
        let mut reader = Reader { at: path.clone(), ..Reader::default() };
        reader.visit_file(&code);
        let is_folder = path.is_empty() || file.ends_with("mod.rs");
        let folder = if is_folder { file.with_file_name("") } else { file.with_extension("") };
        for name in reader.children {
            let beside = folder.join(format!("{name}.rs"));
            let below = folder.join(&name).join("mod.rs");
            let file: PathBuf = if beside.exists() { beside } else { below };
            left.push(([&path[..], &[name]].concat(), file));
        }
        modules.files.insert(path, reader.file);
    }
    Ok(modules)
}

/// Collects the paths that one file uses.
#[derive(Debug, Default)]
struct Reader {
    at: Vec<String>,
    /// Inline modules that contain the current item, outermost first.
    inside: Vec<String>,
    children: Vec<String>,
    file: File,
}

impl Reader {
    /// Converts a path to one that starts at the crate's root. Returns `None` for an empty path.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let mut module = [&self.at[..], &self.inside].concat();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => module.clear(),
            "self" => {}
            "super" => {
                module.pop();
            }
            // Relative to this module, if it has such a child. Otherwise the path matches no file.
            _ => return Some([&module[..], path].concat()),
        }
        rest = &rest[1..];
        while rest.first().is_some_and(|name| name == "super") {
            module.pop();
            rest = &rest[1..];
        }
        Some([&module[..], rest].concat())
    }

    fn note(&mut self, path: &[String]) {
        self.file.uses.extend(self.absolute(path));
    }

    fn note_use(&mut self, before: &[String], tree: &syn::UseTree) {
        let named = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.note_use(&named(&path.ident), &path.tree),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.note_use(before, tree));
            }
            syn::UseTree::Glob(_) => self.note(before),
            syn::UseTree::Name(name) if name.ident == "self" => self.note(before),
            syn::UseTree::Name(name) => self.note_name(&named(&name.ident), &name.ident),
            syn::UseTree::Rename(name) => {
                self.note_name(&named(&name.ident), &name.rename);
            }
        }
    }

    fn note_name(&mut self, path: &[String], name: &syn::Ident) {
        self.note(path);
        if let Some(path) = self.absolute(path) {
            self.file.gives.insert(name.to_string(), path);
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_for_tests(attributes(item)) {
            self.file.has.extend(name(item));
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let name = module.ident.to_string();
        if module.content.is_none() {
            self.children.push(name);
            return;
        }
        self.inside.push(name);
        visit::visit_item_mod(self, module);
        self.inside.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.note_use(&[], &item.tree);
        }
    }

    /// Ignores paths in a visibility such as `pub(in crate::a)`, because they use nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if names.len() > 1 {
            self.note(&names);
        }
        visit::visit_path(self, path);
    }
}

/// Returns whether an item is compiled only for tests (`#[cfg(test)]`) or for loom models.
pub fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args::<syn::Ident>().is_ok_and(|name| name == "test")
                || list.tokens.to_string().contains("loom")
                    && !list.tokens.to_string().contains("not")
        }
        _ => false,
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the name of an item that other files can use.
fn name(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

impl Modules {
    /// Returns the module whose file defines the item of a path, following re-exports; `None` if no
    /// file does.
    fn file_of(&self, path: &[String]) -> Option<&Vec<String>> {
        let mut path = path.to_vec();
        // Bound the steps by the number of files, in case re-exports form a circle.
        for _ in 0..self.files.len() {
            let longest = (0..=path.len()).rev().find(|&n| self.files.contains_key(&path[..n]))?;
            let (file, rest) = path.split_at(longest);
            let (module, found) = self.files.get_key_value(file)?;
            let next = rest.first().and_then(|name| found.gives.get(name));
            match next {
                Some(next) if *next != path => path.clone_from(&[&next[..], &rest[1..]].concat()),
                _ => {
                    let is_its = |name: &String| found.has.contains(name);
                    let leads = !module.is_empty() || rest.first().is_some_and(is_its);
                    return leads.then_some(module);
                }
            }
        }
        None
    }

    /// Returns the circles of two or more files, each sorted.
    fn circles(&self) -> Vec<Vec<String>> {
        let names: Vec<_> = self.files.keys().collect();
        let number = |module| names.binary_search(&module).ok();
        let edges: Vec<BTreeSet<usize>> = names
            .iter()
            .enumerate()
            .map(|(from, module)| {
                let uses = self.files[*module].uses.iter();
                let to = uses.filter_map(|path| number(self.file_of(path)?));
                to.filter(|&to| to != from).collect()
            })
            .collect();
        let reached: Vec<BTreeSet<usize>> = (0..names.len()).map(|n| reach(&edges, n)).collect();
        let mut circles: Vec<Vec<String>> = Vec::new();
        let mut done = BTreeSet::new();
        for n in 0..names.len() {
            let circle: Vec<_> =
                reached[n].iter().filter(|&&other| reached[other].contains(&n)).collect();
            if circle.len() > 1 && done.insert(circle[0]) {
                let shown = |module: &[String]| match module {
                    [] => "the root".to_owned(),
                    path => path.join("/"),
                };
                circles.push(circle.iter().map(|&&n| shown(names[n])).collect());
            }
        }
        circles
    }
}

/// Returns all nodes that are reachable from a node.
pub fn reach(edges: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut left = vec![from];
    while let Some(n) = left.pop() {
        left.extend(edges[n].iter().filter(|&&to| reached.insert(to)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the circles of a crate with these module paths and file texts.
    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let mut modules = Modules::default();
        for (path, text) in files {
            let at: Vec<String> =
                path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
            let mut reader = Reader { at: at.clone(), ..Reader::default() };
            reader.visit_file(&syn::parse_file(text).unwrap());
            modules.files.insert(at, reader.file);
        }
        modules.circles()
    }

    #[test]
    fn circles_are_found_through_what_others_give_on() {
        let root = ("", "mod a; mod b; mod c; mod d; pub use d::D;");
        let a = ("a", "use crate::b::{self, B}; fn f() { crate::c::g() }");
        let b = ("b", "pub struct B; #[cfg(test)] mod tests { use crate::c::C; }");
        let d = ("d", "use super::a; pub struct D;");
        assert_eq!(circles(&[root, a, b, ("c", ""), d]), [[""; 0]; 0]);
        let c = ("c", "use crate::{D, other};");
        assert_eq!(circles(&[root, a, b, c, d]), [["a", "c", "d"]]);
        let root = ("", "mod a; use a::A; fn f() { a::g() }");
        assert_eq!(circles(&[root, ("a", "use crate::f;")]), [["the root", "a"]]);
        assert_eq!(circles(&[root, ("a", "use crate::A;")]), [[""; 0]; 0]);
    }

    #[test]
    fn a_folder_and_its_files_are_files() {
        let root = ("", "mod a;");
        let a = ("a", "mod b; mod c; use b::B; use self::c::C;");
        let files = |b| circles(&[root, a, ("a/b", b), ("a/c", "pub struct C;")]);
        assert_eq!(files("use super::A;"), [["a", "a/b"]]);
        assert_eq!(files("use super::c::C;"), [[""; 0]; 0]);
        assert_eq!(files("mod inside { use super::super::A; }"), [["a", "a/b"]]);
        assert_eq!(files("use std::a::A;"), [[""; 0]; 0]);
        assert_eq!(files("pub(in crate::a) struct B;"), [[""; 0]; 0]);
    }
}
