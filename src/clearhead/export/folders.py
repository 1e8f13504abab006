"""A model in the folder of another library that has weights of its own."""

import importlib.util
import tempfile
from pathlib import Path

from clearhead import checkpoints
from clearhead.checkpoints import directory
from clearhead.files import whole_folder
from clearhead.run.answers import QuestionAnswerer
from clearhead.run.encode import TextEncoder
from clearhead.run.generate import TextToText
from clearhead.run.tasks import TextClassifier

Model = TextEncoder | TextToText | TextClassifier | QuestionAnswerer


def loaded(model: str | Path) -> Model:
    """The model in a folder or on the Hub, with its head, in float32 on the CPU: what formats are written from."""
    place = directory.find(model)
    if checkpoints.is_seq2seq(place):
        return TextToText.from_pretrained(place, precision="float32", device="cpu")
    head = checkpoints.head_in(place)
    if head == "classification":
        return TextClassifier.from_pretrained(place, precision="float32", device="cpu")
    if head == "span":
        return QuestionAnswerer.from_pretrained(place, precision="float32", device="cpu")
    return TextEncoder.from_pretrained(place, precision="float32", device="cpu")


def to_transformers(model: str | Path, folder: str | Path) -> None:
    """Writes a model as transformers opens it: weights, config, tokenizer, settings of generation.

    Args:
        model: a folder, or a Hub id.
        folder: where to.

    Raises:
        ValueError: no such model, or a part of it that its family's format cannot hold; the message says which.
    """
    made = loaded(model)
    with whole_folder(Path(folder)) as part:
        made.save_pretrained(part)


def to_sentence_transformers(model: str | Path, folder: str | Path) -> None:
    """Writes an encoder as sentence-transformers opens it: as `to_transformers`, with pooling and prompts.

    Args:
        model, folder: as in `to_transformers`.

    Raises:
        ValueError: an encoder–decoder, or an encoder with a head; and as in `to_transformers`.
    """
    made = loaded(model)
    if not isinstance(made, TextEncoder):
        what = "a decoder" if isinstance(made, TextToText) else "its head"
        raise ValueError(f"sentence-transformers has no place for {what} of {model}")
    with whole_folder(Path(folder)) as part:
        made.save_pretrained(part)


def to_ctranslate2(model: str | Path, folder: str | Path, *, int8: bool = False) -> float:
    """Writes a model as CTranslate2 opens it, by CTranslate2's own converter.

    Args:
        model, folder: as in `to_transformers`.
        int8: weights in 8 bits.

    Returns:
        The largest difference of what it computes in float32 to what the model does, as `against.ctranslate2` says.

    Raises:
        ValueError: CTranslate2 or transformers is not installed; the converter does not know a part of the model, or
            what it makes computes something else: then nothing is written.
    """
    for name in ("ctranslate2", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"CTranslate2's converter needs {name}: pip install {name}")
    from ctranslate2.converters import TransformersConverter

    from clearhead.export import against

    made = loaded(model)
    if not isinstance(made, TextEncoder | TextToText):
        raise ValueError(f"CTranslate2 has no place for the head of {model}")
    with tempfile.TemporaryDirectory() as held, whole_folder(Path(folder)) as part, against.quiet():
        plain, whole = Path(held) / "plain", Path(held) / "whole"
        made.save_pretrained(plain)
        if isinstance(made, TextEncoder):  # the converter asks for a key that transformers 5 does not know any more
            config = directory.read_json(plain / "config.json")
            directory.write_json(plain / "config.json", {"position_embedding_type": "absolute", **config})
        try:
            TransformersConverter(str(plain)).convert(str(whole))
            error = against.ctranslate2(made, whole)
            TransformersConverter(str(plain)).convert(str(part), "int8" if int8 else None, force=True)
        except (ValueError, NotImplementedError, AttributeError, AssertionError) as problem:
            raise ValueError(f"CTranslate2 cannot hold {model}: {problem or type(problem).__name__}") from None
        for path in plain.glob("*.json"):  # its tokenizer is wanted too; config.json is the converter's own
            if not (part / path.name).exists():
                (part / path.name).write_bytes(path.read_bytes())
    return error
