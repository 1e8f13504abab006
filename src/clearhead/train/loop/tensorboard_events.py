"""Write scalars for TensorBoard.

`torch.utils.tensorboard.SummaryWriter` writes in a separate thread. If the disk is full, that thread prints a
traceback, and its error names no file. Here, `add` and `flush` raise one error with the file's name.
"""

import os
import socket
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from clearhead.io.atomic import error_path

_VERSION = "brain.Event:2"


class TensorBoardEvents:
    """A new file of events in a folder.

    Args:
        folder: the folder; it is created if it is missing.
        first_step: TensorBoard ignores events of this step and later ones in older files of the folder.

    Raises:
        OSError: the file could not be written.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}"
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / name
        with error_path(self._path):
            self._file = self._path.open("ab")
        self._writer = RecordWriter(self._file)
        self._add(Event(file_version=_VERSION))
        self._add(Event(session_log=SessionLog(status=SessionLog.START), step=first_step))

    def add(self, name: str, value: float, step: int) -> None:
        """Add a value of a step; it is written by the next `flush` at the latest.

        Raises:
            OSError: the file could not be written.
        """
        self._add(Event(summary=Summary(value=[Summary.Value(tag=name, simple_value=value)]), step=step))

    def flush(self) -> None:
        """Write the added values.

        Raises:
            OSError: the file could not be written.
        """
        with error_path(self._path):
            self._file.flush()

    def close(self) -> None:
        """Write the added values and close the file."""
        with error_path(self._path):
            self._file.close()

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        with error_path(self._path):
            self._writer.write(event.SerializeToString())
