"""A model in the folder of another library."""

import importlib.util
import tempfile
from pathlib import Path

from clearhead import checkpoints
from clearhead.checkpoints import directory
from clearhead.files import whole_folder
from clearhead.run.encode import TextEncoder
from clearhead.run.generate import TextToText


def to_transformers(model: str | Path, folder: str | Path) -> None:
    """Writes a model as transformers opens it: weights, config, tokenizer, settings of generation.

    Args:
        model: a folder, or a Hub id.
        folder: where to.

    Raises:
        ValueError: no such model, or a part of it that its family's format cannot hold; the message says which.
    """
    place = directory.find(model)
    made = (TextToText if checkpoints.is_seq2seq(place) else TextEncoder).from_pretrained(
        place, precision="float32", device="cpu"
    )
    with whole_folder(Path(folder)) as part:
        made.save_pretrained(part)


def to_sentence_transformers(model: str | Path, folder: str | Path) -> None:
    """Writes an encoder as sentence-transformers opens it: as `to_transformers`, with pooling and prompts.

    Args:
        model, folder: as in `to_transformers`.

    Raises:
        ValueError: an encoder–decoder, which gives no vectors; and as in `to_transformers`.
    """
    if checkpoints.is_seq2seq(directory.find(model)):
        raise ValueError(
            f"{model} is an encoder–decoder; the sentence-transformers format has no place for its decoder"
        )
    to_transformers(model, folder)


def to_ctranslate2(model: str | Path, folder: str | Path, *, int8: bool = False) -> None:
    """Writes a model as CTranslate2 opens it, by its own converter.

    Args:
        model, folder: as in `to_transformers`.
        int8: weights in 8 bits.

    Raises:
        ValueError: CTranslate2 or transformers is not installed, or there is something in the model that the converter
            does not know; and as in `to_transformers`.
    """
    for name in ("ctranslate2", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"its converter needs {name}: pip install {name}")
    from ctranslate2.converters import TransformersConverter

    with tempfile.TemporaryDirectory() as held:
        plain = Path(held) / "model"
        to_transformers(model, plain)
        with whole_folder(Path(folder)) as part:
            try:
                TransformersConverter(str(plain)).convert(str(part), "int8" if int8 else None, force=True)
            except (ValueError, NotImplementedError) as error:
                raise ValueError(f"CTranslate2 cannot hold {model}: {error}") from None
            for path in plain.iterdir():
                if path.suffix == ".json" and path.name != "config.json":
                    (part / path.name).write_bytes(path.read_bytes())
