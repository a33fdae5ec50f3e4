//! Man pages and shell completions for packages, made from the definition of the command line.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Command;
use clap_complete::{Shell, generate_to};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// The shells whose completions have a folder in Linux packages.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

/// The hidden subcommand that writes the pages and completions. They do not mention it.
pub(crate) const SUBCOMMAND: &str = "__manual";

/// Writes the pages to DIR/man and the completions to DIR/completions.
pub(crate) fn main(program: Command, words: &[OsString]) -> anyhow::Result<ExitCode> {
    let [folder] = words else { bail!("name the folder to write to: quorlock {SUBCOMMAND} DIR") };
    let folder = Path::new(folder);
    write(program, folder).with_context(|| format!("cannot write to {}", folder.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn write(mut program: Command, folder: &Path) -> io::Result<()> {
    let completions = folder.join("completions");
    fs::create_dir_all(&completions)?;
    for shell in SHELLS {
        generate_to(shell, &mut program.clone(), "quorlock", &completions)?;
    }
    let pages = folder.join("man");
    fs::create_dir_all(&pages)?;
    // No page for `quorlock help`, which says the same as `quorlock --help`.
    program = program.disable_help_subcommand(true);
    program.build();
    page(&program, &pages)?;
    subcommands(&program).try_for_each(|subcommand| page(subcommand, &pages))
}

fn subcommands(program: &Command) -> impl Iterator<Item = &Command> {
    program.get_subcommands().filter(|subcommand| !subcommand.is_hide_set())
}

fn page(command: &Command, folder: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let source = format!("quorlock {}", env!("CARGO_PKG_VERSION"));
    let man =
        Man::new(command.clone()).title(name.to_uppercase()).source(source).manual("Quorlock");
    let mut file = File::create(folder.join(format!("{name}.1")))?;
    man.render_title(&mut file)?;
    man.render_name_section(&mut file)?;
    man.render_synopsis_section(&mut file)?;
    man.render_description_section(&mut file)?;
    man.render_options_section(&mut file)?;
    if subcommands(command).next().is_some() {
        man.render_subcommands_section(&mut file)?;
    }
    if let Some(rest) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        notes(&rest.to_string(), &mut file)?;
    }
    file.flush()
}

/// Writes the text that `--help` shows after the options. A paragraph that begins with a line such
/// as `Examples:` becomes a section. Lines are kept as they are: they are tables and commands.
fn notes(text: &str, to: &mut dyn Write) -> io::Result<()> {
    let mut roff = Roff::new();
    for paragraph in text.split("\n\n") {
        let (first, rest) = paragraph.split_once('\n').unwrap_or((paragraph, ""));
        let lines = if paragraph.starts_with(' ') {
            roff.control("PP", []);
            paragraph
        } else if let Some(heading) = first.strip_suffix(':') {
            let (heading, aside) = heading.split_once(" (").unwrap_or((heading, ""));
            roff.control("SH", [heading.to_uppercase().as_str()]);
            if !aside.is_empty() {
                roff.text([roman(aside.trim_end_matches(')'))]);
            }
            rest
        } else {
            roff.control("SH", ["NOTES"]);
            paragraph
        };
        roff.control("nf", []);
        for line in lines.lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
    }
    roff.to_writer(to)
}
