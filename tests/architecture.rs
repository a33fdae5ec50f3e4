//! The pages name only files, headings, items, tests and make targets that exist, and their table
//! of limits is that of the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Fewer links on all pages together mean that the pages were not parsed correctly.
const LINKS_MIN: usize = 300;

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

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files in a folder, at any depth. Hidden files and build results are left out.
fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).expect("the folder exists");
    let files = entries.flat_map(|entry| {
        let name = entry.expect("an entry").file_name().into_string().expect("names are UTF-8");
        let path = Path::new(folder).join(&name);
        if name.starts_with('.') || name == "target" {
            vec![]
        } else if root().join(&path).is_dir() {
            files(path.to_str().expect("names are UTF-8"))
        } else {
            vec![path]
        }
    });
    files.collect()
}

fn pages() -> Vec<PathBuf> {
    let mut pages = files("");
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

/// The lines of a page outside of its code blocks, numbered from 1.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    page.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
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
            // The text of a link may begin on the line before.
            let text = &line[line[..at].rfind('[').map_or(0, |begin| begin + 1)..at];
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

/// The anchor that a heading has on a page.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The defect of a link on a page, if any.
fn complaint(page: &Path, link: &Link) -> Option<String> {
    if link.target.contains("://") {
        return None;
    }
    let (target, heading) = link.target.split_once('#').unwrap_or((&link.target, ""));
    let path = match target {
        "" => page.to_owned(),
        _ => page.parent().expect("a page is in a folder").join(target),
    };
    if !path.exists() {
        return Some(format!("there is no {target}"));
    }
    if !heading.is_empty() {
        let page = read(path);
        let mut headings = prose(&page).filter_map(|(_, line)| line.strip_prefix('#'));
        let is_there = headings.any(|line| anchor(line.trim_start_matches('#').trim()) == heading);
        return (!is_there).then(|| format!("there is no heading {}", link.target));
    }
    let item = link.text.strip_prefix('`')?.strip_suffix('`')?;
    if path.extension().is_none_or(|extension| extension != "rs") || item.contains(['/', '.']) {
        return None;
    }
    let source = read(&path);
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

/// Whether a code span is the name of a test. No other name has so many words.
fn is_test_name(code: &str) -> bool {
    code.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && code.matches('_').count() > 3
}

/// The code spans of a page, with the numbers of their lines.
fn code(page: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(page).flat_map(|(number, line)| {
        line.split('`').skip(1).step_by(2).map(move |code| (number, code))
    })
}

fn complaints(page: &Path, text: &str, targets: &BTreeSet<&str>, sources: &str) -> Vec<String> {
    let path = root().join(page);
    let mut complaints = Vec::new();
    let mut complain =
        |line: usize, what: String| complaints.push(format!("{}:{line}: {what}", page.display()));
    for link in links(text) {
        if let Some(what) = complaint(&path, &link) {
            complain(link.line, what);
        }
    }
    for (line, code) in code(text) {
        if is_path(code) && !root().join(code).exists() {
            complain(line, format!("there is no {code}"));
        }
        if is_test_name(code) && !sources.contains(code) {
            complain(line, format!("there is no test {code}"));
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
fn pages_name_only_what_exists() {
    let makefile = read("Makefile");
    let targets = make_targets(&makefile);
    let mut sources = files("");
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let sources: String = sources.into_iter().map(read).collect();
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in pages() {
        let text = read(&page);
        count += links(&text).len();
        wrong.extend(complaints(&page, &text, &targets, &sources));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= LINKS_MIN, "only {count} links were found");
}

#[test]
fn every_page_of_docs_is_a_chapter_of_the_book() {
    let contents = read("docs/SUMMARY.md");
    for page in pages() {
        let Ok(chapter) = page.strip_prefix("docs") else { continue };
        let is_chapter = contents.contains(&format!("({})", chapter.display()));
        assert!(is_chapter || chapter == "SUMMARY.md", "docs/SUMMARY.md lacks {page:?}");
    }
}

#[test]
fn every_file_of_tests_belongs_to_a_program() {
    for package in ["", "crates/cli/", "crates/client/", "crates/core/"] {
        let manifest = read(format!("{package}Cargo.toml"));
        let program = read(format!("{package}tests/main.rs"));
        for file in files(&format!("{package}tests")) {
            let name = file.strip_prefix(format!("{package}tests")).expect("the folder");
            let module = name.to_str().expect("UTF-8").trim_end_matches(".rs");
            let is_program = manifest.contains(&format!("\"tests/{module}.rs\""));
            let is_module = program.contains(&format!("mod {module};"));
            let is_nested = module.contains('/') || name.extension().is_none_or(|it| it != "rs");
            assert!(is_program || is_module || is_nested, "{package}tests/main.rs lacks {module}");
        }
    }
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

const LIMITS: &str = "crates/core/src/client/limits.rs";

#[test]
fn limits_of_a_client_are_constants_of_one_table() {
    /// Has the drift of clocks, which belongs to the rule of safety itself.
    const VALIDITY: &str = "crates/core/src/quorum/validity.rs";
    let mut unnamed = Vec::new();
    for path in ["crates/core/src/client", "crates/core/src/quorum"].into_iter().flat_map(files) {
        let source = read(&path);
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
}

/// The value of a constant, as people write it.
fn value(name: &str, code: &str) -> String {
    let code = code.replace('_', "");
    let inside = |call: &str| Some(code.split_once(call)?.1.split_once(')')?.0);
    if let Some(seconds) = inside("fromsecs(") {
        format!("{seconds} s")
    } else if let Some(ms) = inside("frommillis(") {
        format!("{ms} ms")
    } else if let Some((round_trips, ms)) =
        inside("ByRoundTrip::new(").and_then(|arguments| arguments.split_once(", "))
    {
        format!("{round_trips} rt, at least {ms} ms")
    } else if let Some(seconds) = code.strip_suffix("000000").filter(|_| name.ends_with("_US")) {
        format!("{seconds} s")
    } else {
        code
    }
}

/// The rows of the table of limits: of each public item its name, its value, and the first sentence
/// of its documentation. The value of a function is that of the constant with the same name.
fn limits(source: &str) -> String {
    let (mut sentence, mut values, mut items) = (String::new(), BTreeMap::new(), Vec::new());
    for line in source.lines() {
        if let Some(comment) = line.strip_prefix("///") {
            sentence += comment;
            continue;
        }
        let item = line.strip_prefix("pub ").unwrap_or(line);
        let (kind, rest) = item.split_once(' ').unwrap_or_default();
        let name = rest.split([':', '(']).next().unwrap_or_default();
        if kind == "const" {
            let code = rest.split_once(" = ").expect("a value").1.trim_end_matches(';');
            values.insert(name.to_owned(), value(name, code));
        }
        if item != line && ["const", "fn"].contains(&kind) {
            let first = sentence.trim().split(". ").next().unwrap_or_default();
            let first = first.trim_end_matches('.').replace("[`", "`").replace("`]", "`");
            items.push((name.to_owned(), first));
        }
        sentence.clear();
    }
    let row = |(name, sentence): &(String, String)| {
        let value = values.get(&name.to_uppercase())?;
        Some(format!("| [`{name}`][limits] | {value} | {sentence} |\n"))
    };
    items.iter().filter_map(row).collect()
}

#[test]
fn table_of_limits_is_that_of_the_code() {
    const PAGE: &str = "ARCHITECTURE.md";
    const HEAD: &str = "| limit | value | what for |\n|---|---|---|\n";
    let page = read(PAGE);
    let (before, rest) = page.split_once(HEAD).expect("the page has the table");
    let (written, after) = rest.split_once("\n\n").expect("a text follows the table");
    let rows = limits(&read(LIMITS));
    assert!(rows.lines().count() > 20, "{rows}");
    if std::env::var_os("QUORLOCK_WRITE_LIMITS").is_some() {
        fs::write(root().join(PAGE), format!("{before}{HEAD}{rows}\n{after}"))
            .expect("it is written");
    } else {
        assert_eq!(format!("{written}\n"), rows, "the table is old: run `make limits`");
    }
}

#[test]
fn missing_target_of_a_page_is_noticed() {
    let page = "[No](#such) [heading](docs/faq.md#which-ttl).
See [`key_state`][file] and [`no_such_item`][file], [gone](crates/none.rs), `src/none.rs`,
`make nothing`, `tests_that_do_not_exist`, [`Phase::Absent`](crates/core/src/client/acquire/mod.rs).
```text
`src/in_a_block.rs`
```
[file]: crates/core/src/node/key_state.rs
";
    let found = complaints(Path::new("ARCHITECTURE.md"), page, &BTreeSet::from(["test"]), "");
    let expected = [
        "ARCHITECTURE.md:1: there is no heading #such",
        "ARCHITECTURE.md:2: crates/core/src/node/key_state.rs does not define no_such_item",
        "ARCHITECTURE.md:2: there is no crates/none.rs",
        "ARCHITECTURE.md:3: crates/core/src/client/acquire/mod.rs does not define Phase::Absent",
        "ARCHITECTURE.md:2: there is no src/none.rs",
        "ARCHITECTURE.md:3: the Makefile has no target nothing",
        "ARCHITECTURE.md:3: there is no test tests_that_do_not_exist",
    ];
    assert_eq!(BTreeSet::from_iter(found), expected.map(str::to_owned).into());
}
