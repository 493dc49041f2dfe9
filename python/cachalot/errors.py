"""The exceptions. The class says what the caller can do; the message names the thing, its value and what was
expected. Classes are named after the codes of the C++ library."""

import builtins

__all__ = ["Error"]


class Error(Exception):
    """Base class of all errors of the library."""

    code = "internal"
    #: errno if the operating system reported the error, else 0
    os_error = 0
    #: The wrong index, offset or value, if one number describes it. In the TimeoutError of a load or store:
    #: how many leading blocks are loaded, or in the pool.
    detail = 0


class _SystemError:
    """Errors that are also an OSError: `errno` is set if the operating system reported the error."""

    @property
    def errno(self):
        return self.os_error or None


class InvalidArgumentError(Error, ValueError):
    """A value out of range, a tensor that does not fit, a client that has detached."""

    code = "invalid_argument"


class BadInputError(Error):
    """The content of a file is invalid."""

    code = "bad_input"


class NotAPoolError(Error):
    """The path exists, but is not a pool."""

    code = "not_a_pool"


class VersionMismatchError(Error):
    """A pool of another format version."""

    code = "version_mismatch"


class NotFoundError(Error, LookupError):
    """The key, file or entry is absent."""

    code = "not_found"


class CorruptError(Error):
    """Wrong checksum or invalid content."""

    code = "corrupt"


class StaleError(Error):
    """Another keeper has taken over, or the block was reused: try again."""

    code = "stale"


class RefusedError(Error):
    """The keeper rejected it."""

    code = "refused"


class NoKeeperError(Error):
    """The pool has no live keeper."""

    code = "no_keeper"


class NoSpaceError(Error):
    """A device, file system or table is full."""

    code = "no_space"


class PermissionError(_SystemError, Error, builtins.PermissionError):
    """The operating system forbids it."""

    code = "permission"


class BusyError(Error):
    """In use by another process or call."""

    code = "busy"


class TimeoutError(_SystemError, Error, builtins.TimeoutError):
    """Not done within the time given."""

    code = "timeout"


class UnsupportedError(Error):
    """This machine, build, pool or process (a forked child) cannot do it."""

    code = "unsupported"


class IoError(_SystemError, Error, OSError):
    """The operating system reported an error."""

    code = "io"


class InternalError(Error):
    """A bug in the library, or a driver that failed."""

    code = "internal"


class CancelledError(Error):
    """The caller cancelled the call."""

    code = "cancelled"


#: The class of each code.
CLASSES = {error.code: error for error in Error.__subclasses__()}
__all__ += [error.__name__ for error in CLASSES.values()]
