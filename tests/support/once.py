"""What takes long to make is made once for all the processes that the tests run in."""

import fcntl
import os


def once(tmp_path_factory, name, make):
    """The folder of this name, which `make` is given to fill; whoever comes while another fills it waits."""
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
