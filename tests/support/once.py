"""Create slow fixtures once for all pytest processes."""

import fcntl
import os


def once(tmp_path_factory, name, make):
    """Return a shared folder that `make` fills once. Other processes wait for it."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder, whole = root / "once" / name, root / "once" / f"{name}.whole"
    folder.parent.mkdir(exist_ok=True)
    with (root / "once" / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            make(folder)
            whole.touch()
    return folder
