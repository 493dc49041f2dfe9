"""What can go wrong. A class says what the caller can do about it, the message names the thing, the
value and what was expected. The classes are named after the codes of the C++ library."""

import builtins

__all__ = ["Error"]


class Error(Exception):
    """Every error of the library."""

    code = "internal"
    #: errno where the operating system was the cause, else 0
    os_error = 0
    #: The offending index, offset or value, where one number says it. Of the TimeoutError of a load or store:
    #: how many leading blocks are loaded, or in the pool.
    detail = 0


class _SystemError:
    """Of those that are an OSError, too: its `errno`, where the operating system was the cause."""

    @property
    def errno(self):
        return self.os_error or None


class InvalidArgumentError(Error, ValueError):
    """A value out of range, a tensor that does not fit, a client that has detached."""

    code = "invalid_argument"


class BadInputError(Error):
    """A file's content is not what it must be."""

    code = "bad_input"


class NotAPoolError(Error):
    """There is something, and it is no pool."""

    code = "not_a_pool"


class VersionMismatchError(Error):
    """A pool of another format version."""

    code = "version_mismatch"


class NotFoundError(Error, LookupError):
    """The key, file or entry is absent."""

    code = "not_found"


class CorruptError(Error):
    """Bytes that do not check."""

    code = "corrupt"


class StaleError(Error):
    """Another keeper rules, or the block was reused: do it again."""

    code = "stale"


class RefusedError(Error):
    """The keeper said no."""

    code = "refused"


class NoKeeperError(Error):
    """Nobody answers for this pool."""

    code = "no_keeper"


class NoSpaceError(Error):
    """A device, file system or table is full."""

    code = "no_space"


class PermissionError(_SystemError, Error, builtins.PermissionError):
    """The operating system forbids it."""

    code = "permission"


class BusyError(Error):
    """Somebody else holds it."""

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
    """A fault of the library."""

    code = "internal"


class CancelledError(Error):
    """The caller took it back."""

    code = "cancelled"


#: The class of each code.
CLASSES = {error.code: error for error in Error.__subclasses__()}
__all__ += [error.__name__ for error in CLASSES.values()]
