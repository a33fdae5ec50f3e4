//! The pages for contributors name only files, items and make targets that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Fewer links on all pages together mean that the pages were not parsed correctly.
const LINKS_MIN: usize = 150;

/// A link of a page: its text, and its target, relative to the page.
#[derive(Debug, PartialEq)]
struct Link {
    line: usize,
    text: String,
    target: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn pages() -> Vec<PathBuf> {
    let fixed = ["ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "docs/glossary.md"];
    let records = fs::read_dir(root().join("docs/adr")).expect("docs/adr is a folder");
    let records =
        records.map(|entry| Path::new("docs/adr").join(entry.expect("an entry").file_name()));
    let mut pages: Vec<_> = fixed.iter().map(PathBuf::from).chain(records).collect();
    pages.sort();
    pages
}

/// The lines of a page outside of its code blocks, numbered from 1.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    page.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((index + 1, line))
    })
}

/// The definition of a name for a target: `[name]: target`.
fn definition(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix('[')?.split_once("]: ")
}

/// All links of a page: `[text](target)` and `[text][name]`.
fn links(page: &str) -> Vec<Link> {
    let definitions: BTreeMap<_, _> =
        prose(page).filter_map(|(_, line)| definition(line)).collect();
    let mut links = Vec::new();
    for (number, line) in prose(page).filter(|(_, line)| definition(line).is_none()) {
        for (at, _) in line.match_indices("](").chain(line.match_indices("][")) {
            let text = &line[line[..at].rfind('[').expect("a link has a text") + 1..at];
            let rest = &line[at + 2..];
            let is_named = line[at..].starts_with("][");
            let target = rest.split(if is_named { ']' } else { ')' }).next().unwrap_or_default();
            let target = match definitions.get(target) {
                Some(target) if is_named => target,
                None if is_named => panic!("line {number}: [{target}] is not defined"),
                _ => target,
            };
            links.push(Link { line: number, text: text.to_owned(), target: target.to_owned() });
        }
    }
    links
}

/// The names that a source file defines: items, fields and variants.
fn defined(source: &str) -> BTreeSet<&str> {
    const KEYWORDS: [&str; 8] = ["fn", "const", "static", "struct", "enum", "trait", "type", "mod"];
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut defined = BTreeSet::new();
    for line in source.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
        let words: Vec<_> = line.split(|c| !is_word(c)).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2).filter(|pair| KEYWORDS.contains(&pair[0])) {
            defined.insert(pair[1]);
        }
        // A field is `name: Type`, and a variant is `Name,` or `Name {` or `Name(`.
        let unqualified = line.strip_prefix("pub(crate) ").or(line.strip_prefix("pub(super) "));
        let unqualified = unqualified.or(line.strip_prefix("pub ")).unwrap_or(line);
        let end = unqualified.find(|c| !is_word(c)).unwrap_or(unqualified.len());
        let (name, rest) = unqualified.split_at(end);
        let is_variant = name.starts_with(char::is_uppercase)
            && (rest == "," || rest.starts_with(" {") || rest.starts_with('('));
        if is_variant || rest.starts_with(": ") {
            defined.insert(name);
        }
    }
    defined
}

/// The defect of a link on a page in `folder`, if any.
fn complaint(folder: &Path, link: &Link) -> Option<String> {
    if link.target.contains("://") || link.target.starts_with('#') {
        return None;
    }
    let target = link.target.split('#').next().unwrap_or_default();
    let path = folder.join(target);
    if !path.exists() {
        return Some(format!("there is no {target}"));
    }
    let item = link.text.strip_prefix('`')?.strip_suffix('`')?;
    if path.extension().is_none_or(|extension| extension != "rs") || item.contains(['/', '.']) {
        return None;
    }
    let source = fs::read_to_string(&path).expect("a source is UTF-8");
    let defined = defined(&source);
    // For `Type::item`, the file need not define the type: it may implement a type of another file.
    let (owner, name) = item.rsplit_once("::").unwrap_or(("", item));
    let has_owner = owner.is_empty() || source.contains(owner);
    (!defined.contains(name) || !has_owner).then(|| format!("{target} does not define {item}"))
}

/// Whether a code span is a path of this repository, such as `src/lib.rs` or `crates/core`.
fn is_path(code: &str) -> bool {
    const TOP: [&str; 5] = ["crates/", "src/", "tests/", "docs/", "scripts/"];
    TOP.iter().any(|top| code.starts_with(top)) && !code.contains([' ', '*', '<', '…'])
}

/// The code spans of a page, with the numbers of their lines.
fn code(page: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(page).flat_map(|(number, line)| {
        line.split('`').skip(1).step_by(2).map(move |code| (number, code))
    })
}

fn complaints(page: &Path, text: &str, targets: &BTreeSet<&str>) -> Vec<String> {
    let folder = root().join(page).parent().expect("a page is in a folder").to_owned();
    let mut complaints = Vec::new();
    let mut complain =
        |line: usize, what: String| complaints.push(format!("{}:{line}: {what}", page.display()));
    for link in links(text) {
        if let Some(what) = complaint(&folder, &link) {
            complain(link.line, what);
        }
    }
    for (line, code) in code(text) {
        if is_path(code) && !root().join(code).exists() {
            complain(line, format!("there is no {code}"));
        }
        let target = code.strip_prefix("make ").and_then(|rest| rest.split(' ').next());
        if let Some(target) = target.filter(|target| !targets.contains(target)) {
            complain(line, format!("the Makefile has no target {target}"));
        }
    }
    complaints
}

fn make_targets(makefile: &str) -> BTreeSet<&str> {
    let names = makefile.lines().filter(|line| !line.starts_with(['\t', '#', '.']));
    names.filter_map(|line| Some(line.split_once(':')?.0)).collect()
}

#[test]
fn pages_for_contributors_name_only_what_exists() {
    let makefile = fs::read_to_string(root().join("Makefile")).expect("there is a Makefile");
    let targets = make_targets(&makefile);
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text =
            fs::read_to_string(root().join(&page)).unwrap_or_else(|_| panic!("{}", page.display()));
        count += links(&text).len();
        wrong.extend(complaints(&page, &text, &targets));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= LINKS_MIN, "only {count} links were found");
}

/// The files of source code in a folder, at any depth.
fn sources(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).expect("the folder exists");
    let sources = entries.flat_map(|entry| {
        let name = entry.expect("an entry").file_name().into_string().expect("names are UTF-8");
        let path = format!("{folder}/{name}");
        if root().join(&path).is_dir() { sources(&path) } else { vec![PathBuf::from(path)] }
    });
    sources.collect()
}

/// Whether a line of code has a time, or a factor of a time, that has no name.
fn has_unnamed_limit(line: &str) -> bool {
    const TIMES: [&str; 7] =
        ["duration()", "ttl()", "ttl", "round_trip", "timeout", "limit", "measured"];
    let begins_with_digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let has_time = ["from_secs(", "from_millis("]
        .iter()
        .any(|call| line.split(call).skip(1).any(begins_with_digit));
    let has_factor = [" * ", " / "].iter().any(|operator| {
        line.match_indices(operator).any(|(at, _)| {
            TIMES.iter().any(|time| line[..at].ends_with(time))
                && begins_with_digit(&line[at + operator.len()..])
        })
    });
    has_time || has_factor
}

#[test]
fn limits_of_a_client_are_constants_of_one_table() {
    const LIMITS: &str = "crates/core/src/client/limits.rs";
    /// Has the drift of clocks, which belongs to the rule of safety itself.
    const VALIDITY: &str = "crates/core/src/quorum/validity.rs";
    let mut unnamed = Vec::new();
    for path in ["crates/core/src/client", "crates/core/src/quorum"].into_iter().flat_map(sources) {
        let source = fs::read_to_string(root().join(&path)).expect("a source is UTF-8");
        let code = source.lines().take_while(|line| *line != "#[cfg(test)]");
        let code = code.map(str::trim_start).filter(|line| !line.starts_with("//"));
        let is_constant = |line: &str| {
            let is_in_table = [LIMITS, VALIDITY].iter().any(|table| path == Path::new(table));
            is_in_table && line.trim_start_matches("pub ").starts_with("const ")
        };
        let found = code.filter(|line| has_unnamed_limit(line) && !is_constant(line));
        unnamed.extend(found.map(|line| format!("{}: {line}", path.display())));
    }
    assert!(unnamed.is_empty(), "{unnamed:#?}");

    let source = fs::read_to_string(root().join(LIMITS)).expect("a source is UTF-8");
    let public = source.lines().filter_map(|line| {
        let item = line.strip_prefix("pub const ").or_else(|| line.strip_prefix("pub fn "))?;
        item.split([':', '(']).next()
    });
    let public: Vec<_> = public.collect();
    assert!(public.len() > 30, "{public:?}");
    let table: Vec<_> = source.lines().filter(|line| line.starts_with("//! |")).collect();
    for item in public {
        assert!(table.iter().any(|row| row.contains(&format!("[`{item}`]"))), "{item}");
    }
}

#[test]
fn missing_target_of_a_page_is_noticed() {
    let page =
        "See [`key_state`][file] and [`no_such_item`][file], [gone](crates/none.rs), `src/none.rs`,
`make nothing`, [`Phase::Absent`](crates/core/src/client/acquire/mod.rs).
```text
`src/in_a_block.rs`
```
[file]: crates/core/src/node/key_state.rs
";
    let found = complaints(Path::new("ARCHITECTURE.md"), page, &BTreeSet::from(["test"]));
    let expected = [
        "ARCHITECTURE.md:1: crates/core/src/node/key_state.rs does not define no_such_item",
        "ARCHITECTURE.md:1: there is no crates/none.rs",
        "ARCHITECTURE.md:2: crates/core/src/client/acquire/mod.rs does not define Phase::Absent",
        "ARCHITECTURE.md:1: there is no src/none.rs",
        "ARCHITECTURE.md:2: the Makefile has no target nothing",
    ];
    assert_eq!(BTreeSet::from_iter(found), expected.map(str::to_owned).into());
}

#[test]
fn definitions_are_distinguished_from_uses() {
    let source = "pub(crate) const LIMIT: u64 = 1;\nimpl It {\n    fn of(one: Kind) -> It { other(one) }\n}\n\
                  enum Kind {\n    First,\n    Second {\n        field: u64,\n    },\n}\n// fn commented()\n";
    let defined = defined(source);
    for name in ["LIMIT", "of", "Kind", "First", "Second", "field"] {
        assert!(defined.contains(name), "{name}");
    }
    for name in ["other", "commented", "u64"] {
        assert!(!defined.contains(name), "{name}");
    }
}
