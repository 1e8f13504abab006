"""Read PyTorch's pickled files without running the code in them."""

import pickle
import re
from pathlib import Path

import torch


def read_pickle(path: Path, advice: str) -> object:
    """Return the tensors and plain values in a file that `torch.save` wrote.

    PyTorch's restricted reader (``weights_only=True``) never runs code. Its messages suggest to switch it off; the
    messages here never do.

    Args:
        path: the file.
        advice: what to do about a file that cannot be read, for the message.

    Raises:
        ValueError: the file is damaged, or contains code or objects other than tensors.
        OSError: the file is missing or cannot be opened.

    >>> import tempfile; from clearhead.io.pickle import read_pickle
    >>> path = Path(tempfile.mkdtemp()) / "a.bin"; torch.save({"a": 1}, path)
    >>> read_pickle(path, "Download it again.")
    {'a': 1}
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch.load raises many kinds for a damaged or unsafe file
        raise ValueError(f"{path} {_problem(error)}. {advice}") from None


def _problem(error: Exception) -> str:
    code, never = "contains code or objects other than tensors", "Clearhead never runs code from a file"
    named = re.search(r"GLOBAL ([\w.]{1,80})", str(error))
    if named:
        return f"{code} ({named[1]}), and {never}"
    for kind in ("tar", "TorchScript"):  # both are read by running what they contain
        if re.search(rf"Cannot use .*{kind}", str(error)):
            return f"is a {kind} archive, which {code}, and {never}"
    if isinstance(error, pickle.UnpicklingError):
        return f"is damaged, or {code}; {never}"
    return "is truncated or damaged"
