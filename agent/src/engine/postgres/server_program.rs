//! The server's program, run as a child.

use std::fs::OpenOptions;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::control::ControlFile;
use super::server_error::ServerError;
use super::server_settings::{self, Owner};

/// The server's program, to be run as the owner of the data directory.
pub(super) struct Program<'a> {
    pub(super) path: &'a Path,
    pub(super) data_dir: &'a Path,
    pub(super) owner: Owner,
}

impl Program<'_> {
    fn command(&self, settings: &[(String, String)]) -> Command {
        let mut command = Command::new(self.path);
        command.arg("-D").arg(self.data_dir);
        for (name, value) in settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        // What the environment says about PostgreSQL is about another server.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PG")) {
            command.env_remove(name);
        }
        command.current_dir("/").stdin(Stdio::null());
        if rustix::process::geteuid().is_root() {
            command.uid(self.owner.uid).gid(self.owner.gid);
        }
        command
    }

    /// Starts it; also says where in the log its lines begin.
    pub(super) fn run(&self, settings: &[(String, String)], log: &Path) -> Result<(Child, u64), ServerError> {
        let opened = OpenOptions::new().create(true).append(true).open(log);
        let opened = opened.and_then(|file| Ok((file.metadata()?.len(), file.try_clone()?, file)));
        let (from, out, errors) = opened.map_err(|source| ServerError::Run { program: log.to_owned(), source })?;
        let mut command = self.command(settings);
        // It stays in our process group: Ctrl-C on a terminal ends both, and the server in order.
        command.stdout(out).stderr(errors);
        let child = command.spawn().map_err(|source| ServerError::Run { program: self.path.to_owned(), source })?;
        Ok((child, from))
    }

    /// Recovery with `hot_standby` is refused below what the source had; a higher value of the copy's stays.
    pub(super) fn raised_settings(
        &self,
        control: &ControlFile,
        settings: &[(String, String)],
    ) -> Result<Vec<(String, String)>, ServerError> {
        let mut raised = Vec::new();
        for (name, minimum) in server_settings::minimums(control.minimums) {
            if self.value_of(name, settings)? < minimum {
                raised.push((name.to_owned(), minimum.to_string()));
            }
        }
        Ok(raised)
    }

    /// What a setting would be, from the server itself: `postgres -C`. The first answer shows a bad configuration too.
    fn value_of(&self, name: &str, settings: &[(String, String)]) -> Result<u32, ServerError> {
        let output = self.command(settings).arg("-C").arg(name).output();
        let output = output.map_err(|source| ServerError::Run { program: self.path.to_owned(), source })?;
        let answer = String::from_utf8_lossy(&output.stdout);
        if let (true, Ok(value)) = (output.status.success(), answer.trim().parse()) {
            return Ok(value);
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        let said = errors.trim().lines().collect::<Vec<_>>().join("; ");
        let killed = output.status.signal().map(|signal| format!("signal {signal}"));
        Err(ServerError::Configuration(if said.is_empty() {
            killed.unwrap_or_else(|| answer.into_owned())
        } else {
            said
        }))
    }
}
