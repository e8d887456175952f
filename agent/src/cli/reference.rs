//! The reference of the command line, as a page of Markdown, made from the command line itself.

use std::fmt::Write as _;

/// How wide help is in the page.
const WIDTH: usize = 100;

/// The page.
pub fn reference() -> String {
    let mut command = super::command().term_width(WIDTH);
    command.build();
    let mut page = String::from(
        "# holdfast-agent\n\n<!-- Made from the program's own help. After a change: \
         HOLDFAST_REGENERATE=1 cargo test -p holdfast-agent --test cli -->\n\n",
    );
    section(&mut page, &mut command);
    let names: Vec<String> =
        command.get_subcommands().map(|command| command.get_name().to_owned()).filter(|name| name != "help").collect();
    for name in names {
        if let Some(subcommand) = command.find_subcommand_mut(&name) {
            let _ = writeln!(page, "## {name}\n");
            // The options that all commands have are told once, above.
            let mut own = subcommand.clone().term_width(WIDTH).mut_args(|arg| {
                let shared = arg.is_global_set();
                arg.hide(shared)
            });
            section(&mut page, &mut own);
        }
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn section(page: &mut String, command: &mut clap::Command) {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = writeln!(page, "```text\n{}\n```\n", lines.join("\n").trim_end());
}
