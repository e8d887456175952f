//! What an error of the file system means for a caller.

use std::io;

use rustix::io::Errno;

use crate::repository::store::StoreFault;

/// Another try can succeed: the server of a mounted volume was away, or this machine was short of something.
const PASSING: [Errno; 18] = [
    Errno::AGAIN,
    Errno::BUSY,
    Errno::CONNABORTED,
    Errno::CONNREFUSED,
    Errno::CONNRESET,
    Errno::HOSTDOWN,
    Errno::HOSTUNREACH,
    Errno::INTR,
    Errno::MFILE,
    Errno::NETDOWN,
    Errno::NETUNREACH,
    Errno::NFILE,
    Errno::NOBUFS,
    Errno::NOMEM,
    Errno::NOTCONN,
    Errno::STALE,
    Errno::TIMEDOUT,
    Errno::TXTBSY,
];

/// Sorts an error.
pub(super) fn fault_of(error: &io::Error) -> StoreFault {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT) => StoreFault::Full,
        Some(Errno::NOENT | Errno::NOTDIR) => StoreFault::NotFound,
        Some(_) if is_denied(error) => StoreFault::Denied(error.to_string()),
        Some(errno) if PASSING.contains(&errno) => StoreFault::Unavailable(error.to_string()),
        None if error.kind() == io::ErrorKind::TimedOut => StoreFault::Unavailable(error.to_string()),
        _ => StoreFault::Refused(error.to_string()),
    }
}

/// Whether this process may not do that here, now or ever.
pub(super) fn is_denied(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(errno: Errno) -> StoreFault {
        fault_of(&io::Error::from(errno))
    }

    #[test]
    fn errors_are_sorted_by_what_can_be_done_about_them() {
        assert!(matches!(of(Errno::NOSPC), StoreFault::Full));
        assert!(matches!(of(Errno::DQUOT), StoreFault::Full));
        assert!(matches!(of(Errno::NOENT), StoreFault::NotFound));
        assert!(matches!(of(Errno::STALE), StoreFault::Unavailable(_)));
        assert!(matches!(of(Errno::TIMEDOUT), StoreFault::Unavailable(_)));
        assert!(matches!(of(Errno::IO), StoreFault::Refused(_)), "a broken disk is not mended by waiting");
        for errno in [Errno::ACCESS, Errno::PERM, Errno::ROFS] {
            assert!(matches!(of(errno), StoreFault::Denied(_)));
        }
    }

    #[test]
    fn the_reason_is_kept() {
        assert_eq!(
            of(Errno::ROFS).to_string(),
            "access was denied (Read-only file system (os error 30)): check the credentials and what they are allowed to do"
        );
    }
}
