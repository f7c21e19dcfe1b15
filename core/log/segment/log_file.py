"""The `.log` file of a segment, which `OpenFiles` may close between two uses to bound the number of open files."""

from __future__ import annotations

import errno
from pathlib import Path

from ...errors import StorageError
from .file_operations import OpenFile
from .open_files import OpenFiles


class LogFile:
    """Opens the file on demand. `opened` is None while the file is closed.

    A user keeps the `OpenFile`, not the number of its descriptor: `OpenFiles` may close the file at any time. Only
    `close_file` is thread-safe; the log's lock guards the rest.
    """

    def __init__(self, path: Path, files: OpenFiles) -> None:
        self.path = path
        self.opened: OpenFile | None = None
        self._files = files

    def open(self, *, create: bool = False) -> OpenFile:
        """Returns the open file; opens it if it is closed. Closes other files if the system has no more descriptors.

        Only for a new segment may it `create` the file: a file that is created again after its removal, while a
        reader still uses the segment, would leave an empty file in the log.
        """
        file = self.opened
        if file is not None:
            return file
        try:
            file = OpenFile(self.path, create=create)
        except StorageError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            if not self._files.close_some():
                raise
            file = OpenFile(self.path, create=create)
        self.opened = file
        self._files.used(self)
        return file

    def used(self) -> None:
        """Marks the file as the most recently used, so `OpenFiles` closes it last."""
        self._files.used(self)

    def close_file(self) -> None:
        """Closes the file once its last reader is done; the next use opens it again."""
        self.opened = None
        self._files.closed(self)
