"""Keywords of `TextEncoder.encode`."""

from typing import TypedDict

ENCODE_HINTS = {
    "output_value": 'Use pooling="tokens" for one vector per token',
    "prompt_name": "Use prompt, which takes the name or the text of a prompt",
    "device": "Choose the device when the model is loaded: TextEncoder.from_pretrained(..., device=...)",
    "precision": "Choose the precision when the model is loaded: TextEncoder.from_pretrained(..., precision=...)",
    "pool": "Use `clearhead encode --engine ray` for several machines",
    "num_proc": "All threads of PyTorch are used; see torch.set_num_threads",
    "return_tensors": "Use convert_to_tensor=True",
    "truncation": "Texts are truncated at max_length, and a warning counts them",
}
"""Keywords of other libraries that this library names differently or does not have."""


class EncodeKeywords(TypedDict, total=False):
    """Keywords of `TextEncoder.encode` that do not change the type of its result."""

    normalize: bool | None
    max_length: int | None
    batch_tokens: int | None
    prompt: str | None
    truncate_dim: int | None
    show_progress: bool
    batch_size: int | None
    normalize_embeddings: bool
    show_progress_bar: bool | None
    convert_to_numpy: bool
