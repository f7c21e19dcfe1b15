"""A segment's `.log` file, open only while it is used: `OpenFiles` bounds how many are open."""

from __future__ import annotations

import errno
from pathlib import Path

from ...errors import StorageError
from .file_operations import OpenFile
from .open_files import OpenFiles


class LogFile:
    """`opened` is None while the file is closed. Hold the `OpenFile` while using it, not its number: `OpenFiles` may
    close it here at any time. Not thread-safe but for `close_file`: the log's lock guards it."""

    def __init__(self, path: Path, files: OpenFiles) -> None:
        self.path = path
        self.opened: OpenFile | None = None
        self._files = files

    def open(self) -> OpenFile:
        """Returns the open file; opens or creates it where it is closed. Other files are closed where the system has no
        more descriptors."""
        file = self.opened
        if file is not None:
            return file
        try:
            file = OpenFile(self.path)
        except StorageError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            if not self._files.close_some():
                raise
            file = OpenFile(self.path)
        self.opened = file
        self._files.used(self)
        return file

    def used(self) -> None:
        """Marks the file as the most recently used, so `OpenFiles` closes it last."""
        self._files.used(self)

    def close_file(self) -> None:
        """Closes the file, once its last reader is done; the next use opens it."""
        self.opened = None
        self._files.closed(self)
