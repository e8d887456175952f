//! How a server is to be made and started.

/// Options of a server; the default is one with data checksums, on a unix socket alone, that trusts everybody there.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub(super) initdb: Vec<String>,
    pub(super) configuration: Vec<String>,
    pub(super) settings: Vec<String>,
    pub(super) environment: Vec<(String, String)>,
    pub(super) password: Option<String>,
    pub(super) tcp: bool,
    pub(super) without_checksums: bool,
}

impl Options {
    /// The default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Write-ahead log segments of so many MiB, not 16.
    #[must_use]
    pub fn wal_segment_mib(mut self, mib: u32) -> Self {
        self.initdb.push(format!("--wal-segsize={mib}"));
        self
    }

    /// Pages without checksums.
    #[must_use]
    pub fn without_checksums(mut self) -> Self {
        self.without_checksums = true;
        self
    }

    /// A line of `postgresql.conf`: part of the data directory, so that backups carry it.
    #[must_use]
    pub fn conf(mut self, line: impl Into<String>) -> Self {
        self.configuration.push(line.into());
        self
    }

    /// A setting (`name=value`) given on the command line at every start: not part of the data directory, and stronger
    /// than what is.
    #[must_use]
    pub fn setting(mut self, setting: impl Into<String>) -> Self {
        self.settings.push(setting.into());
        self
    }

    /// A variable of the server's environment.
    #[must_use]
    pub fn environment(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Runs the server by a clock that is off by so much (`+20m`, `-2h`), with libfaketime.
    #[must_use]
    pub fn clock_offset(self, offset: &str) -> Self {
        self.environment("LD_PRELOAD", "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
            .environment("FAKETIME", offset)
            .environment("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    }

    /// Demands this password (SCRAM) of every client.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Listens on 127.0.0.1 as well.
    #[must_use]
    pub fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }
}
