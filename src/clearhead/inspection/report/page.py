"""The page of a run in Python and in notebooks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path

from clearhead.inspection.report.collect import Inspectable, collect
from clearhead.inspection.report.heatmaps import Json
from clearhead.inspection.report.html import render_page, write_page
from clearhead.inspection.report.page_recorder import MapIndex
from clearhead.io.outputs import check_writable
from clearhead.pipelines.auto import load_to_inspect
from clearhead.pipelines.text_to_text import TextToText

_FRAME_HEIGHT = 720


@dataclass(frozen=True)
class Page:
    """The page of a run: tokens, steps, attention, and the result.

    A notebook shows the page in a frame, where its scripts cannot reach the notebook.

    Args:
        data: the values on the page, as JSON values.

    >>> from clearhead import view
    >>> view("all-MiniLM-L6-v2", "The bridge was closed.").html[:15]
    '<!doctype html>'
    """

    data: Json

    @cached_property
    def html(self) -> str:
        """The page as one HTML document without external addresses."""
        return render_page(self.data)

    def save(self, path: str | Path) -> None:
        """Write the page to a file atomically.

        Raises:
            ValueError: the folder does not exist.
        """
        check_writable(Path(path))
        write_page(self.data, Path(path))

    def __repr__(self) -> str:
        text = self.data["text"]
        short = text if len(text) <= 40 else f"{text[:39]}…"
        return f"Page({self.data['model']!r}, {short!r}, {len(self.html) / 1e6:.1f} MB)"

    def _repr_html_(self) -> str:
        """Return a frame without access to the notebook's origin."""
        title = f"Forward pass of {self.data['model']}"
        return (
            f'<iframe title="{escape(title)}" sandbox="allow-scripts" srcdoc="{escape(self.html)}" '
            f'style="width:100%;height:{_FRAME_HEIGHT}px;border:1px solid #8888"></iframe>'
        )


def view(
    model: str | Path | Inspectable,
    text: str | Sequence[str],
    *,
    beam_size: int | None = None,
    full_maps: Sequence[MapIndex] = (),
    source_lang: str | None = None,
    target_lang: str | None = None,
) -> Page:
    """Run a model on a text in float32, and return the page of the run, which a notebook shows.

    Args:
        model: a folder, a Hub id, or a `TextEncoder`, `TextToText` or `TextClassifier`.
        text: the text. For a `TextEncoder`, also up to 12 texts: the page shows the steps of the first one, and the
            cosine of each pair.
        beam_size: number of beams of an encoder–decoder; by default the checkpoint's.
        full_maps: attention maps to keep at full size for any length of the text, as (part, layer, head), such as
            ("encoder", 3, 0).
        source_lang, target_lang: languages, for models that need them.

    Raises:
        ValueError: the model, an attention map or a language does not exist, the text is too long or empty, there are
            several texts and the model does not return vectors, or beams for a model that does not generate.
        NonFiniteError: a step produced NaN or infinity.

    >>> from clearhead import view
    >>> page = view("all-MiniLM-L6-v2", ["The cat sleeps.", "A cat is asleep."])
    >>> round(page.data["cosines"][0][1], 2)
    0.93
    """
    name = str(model) if isinstance(model, str | Path) else model.name
    pipeline = load_to_inspect(model) if isinstance(model, str | Path) else model
    only_generation = {"beam_size": beam_size, "source_lang": source_lang, "target_lang": target_lang}
    given = [key for key, value in only_generation.items() if value is not None]
    if given and not isinstance(pipeline, TextToText):
        raise ValueError(f"{name} does not generate text. Omit {' and '.join(given)}.")
    return Page(
        collect(
            name,
            pipeline,
            text,
            beam_size=beam_size,
            full_maps=full_maps,
            source_lang=source_lang,
            target_lang=target_lang,
        )
    )
