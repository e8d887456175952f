//! A directory.
