"""The events of a run: TensorBoard reads them, a resumed run replaces later ones, and errors name the file."""

import contextlib
import errno
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from clearhead.train.loop.tensorboard_events import TensorBoardEvents


def read(folder, name):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return [(event.step, event.value) for event in accumulator.Scalars(name)]


def test_tensorboard_reads_the_values(tmp_path):
    events = TensorBoardEvents(tmp_path / "events", 1)
    for step in (1, 2, 3):
        events.add("loss", step / 4, step)
        events.add("bleu", float(step), step)
    events.flush()
    assert read(tmp_path / "events", "loss") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    events.add("loss", 8.0, 4)
    events.close()
    assert read(tmp_path / "events", "loss")[-1] == (4, 8.0)
    assert read(tmp_path / "events", "bleu") == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_a_resumed_run_replaces_later_events(tmp_path, monkeypatch):
    killed = TensorBoardEvents(tmp_path, 1)
    for step in (1, 2, 3):
        killed.add("loss", 1.0, step)
    killed.flush()
    later = time.time() + 2
    monkeypatch.setattr(time, "time", lambda: later)  # so another file
    resumed = TensorBoardEvents(tmp_path, 2)
    resumed.add("loss", 5.0, 2)
    resumed.close()
    assert read(tmp_path, "loss") == [(1, 1.0), (2, 5.0)]


def add(events, count):
    for step in range(count):
        events.add("loss", 1.0, step)
    events.flush()


@pytest.mark.parametrize("count", [1, 2000])
def test_an_error_names_the_file(tmp_path, count):
    events = TensorBoardEvents(tmp_path, 1)
    events._file = events._writer._writer = full = open("/dev/full", "ab")  # noqa: SIM115
    with pytest.raises(OSError, match=r"No space left on device: '.*events\.out\.tfevents\.") as caught:
        add(events, count)
    assert caught.value.errno == errno.ENOSPC
    with contextlib.suppress(OSError):
        full.close()
