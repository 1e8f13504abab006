"""Handler for the HTML report of a forward pass."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi.responses import HTMLResponse
from pydantic import Field

from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.pipelines.text_to_text import TextToText
from clearhead.serve.handlers.base import Handler, PreparedRequest, count_tokens, estimate_tokens
from clearhead.serve.http.errors import InvalidRequestError
from clearhead.serve.pages import web_pages
from clearhead.serve.schemas import OptionalModel, RequestBody


class ViewRequest(RequestBody):
    """A text to inspect."""

    text: Annotated[str, Field(min_length=1, max_length=2000)]
    model: OptionalModel = None


class ViewHandler(Handler[ViewRequest, TextEncoder | TextToText]):
    """Return the report of a forward pass as one HTML page."""

    task = "view"
    path = "/view"
    description = "Run a text and return one HTML page with its tokens, every step, the attention, and the beams."
    request_body = ViewRequest
    response_body = None
    media_types = ("text/html",)
    pipeline_types = (TextEncoder, TextToText)

    def estimate(self, body: ViewRequest) -> int:
        """Estimate the number of input and output tokens."""
        return self._cost(estimate_tokens([body.text]))

    def prepare(self, body: ViewRequest) -> PreparedRequest:
        """Count the tokens of the text, which becomes one job."""
        pipeline = self.pipeline
        if isinstance(pipeline, TextToText):
            if not body.text.strip():
                raise InvalidRequestError("text: must not be blank", "text")
            prefix, limit = pipeline.prompts.prefix, pipeline.max_length
        else:
            prefix, limit = pipeline.settings.prompt_text(None), pipeline.settings.max_length
        advice = "send a shorter text"
        (count,) = count_tokens(pipeline.tokenizer, [prefix + body.text], limit, truncate=False, advice=advice)
        return PreparedRequest([(body.text, self._cost(count))])

    def run(self, payloads: Sequence[str], **options: Any) -> Sequence[Any]:
        """Return the HTML of the report of each text."""
        return [web_pages.report(self.pipeline.name, self.pipeline, text) for text in payloads]

    def respond(self, body: ViewRequest, results: list[Any], num_tokens: int) -> HTMLResponse:
        """Return the page with its security headers."""
        return HTMLResponse(results[0], headers=web_pages.security_headers(web_pages.report_policy()))

    def _cost(self, num_tokens: int) -> int:
        beams = self.pipeline.generation_config.beam_size if isinstance(self.pipeline, TextToText) else 0
        return num_tokens + beams * (2 * num_tokens + 16)
