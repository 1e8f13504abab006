"""Read PyTorch's pickle files without running code."""

import pickle
import re
import zipfile
from pathlib import Path

import torch


def read_pickle(path: Path, advice: str) -> object:
    """Return the tensors and plain values in a file that `torch.save` wrote.

    PyTorch's restricted reader (``weights_only=True``) never runs code. Its error messages suggest to disable it, so
    they are replaced. It does not compare the checksums in the file, so a changed bit would become another weight.

    Args:
        path: the file.
        advice: how to fix an unreadable file, for the message.

    Raises:
        ValueError: the file is damaged, or contains code or objects other than tensors.
        OSError: the file is missing or cannot be opened.

    >>> import tempfile; from clearhead.io.pickle import read_pickle
    >>> path = Path(tempfile.mkdtemp()) / "a.bin"; torch.save({"a": 1}, path)
    >>> read_pickle(path, "Download it again.")
    {'a': 1}
    """
    try:
        _check_sums(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:  # a damaged file may give one without a name
        raise OSError(error.errno, error.strerror, str(path)) from None
    except Exception as error:  # torch.load raises many kinds for a damaged or unsafe file
        raise ValueError(f"{path} {_describe_error(error)}. {advice}") from None


def _check_sums(path: Path) -> None:
    """Compare the contents of a zip archive with its checksums; files of older versions of torch have none.

    Raises:
        zipfile.BadZipFile: they differ.
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if (name := archive.testzip()) is not None:
                raise zipfile.BadZipFile(name)


def _describe_error(error: Exception) -> str:
    code, refusal = "contains code or objects other than tensors", "Clearhead never runs code from a file"
    named = re.search(r"GLOBAL ([\w.]{1,80})", str(error))
    if named:
        return f"{code} ({named[1]}), and {refusal}"
    for kind in ("tar", "TorchScript"):  # reading either would run its contents
        if re.search(rf"Cannot use .*{kind}", str(error)):
            return f"is a {kind} archive, which {code}, and {refusal}"
    if isinstance(error, pickle.UnpicklingError):
        return f"is damaged, or {code}; {refusal}"
    return "is truncated or damaged"
