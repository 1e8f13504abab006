"""Attention of random shapes and masks of every kind (hypothesis), and comparisons with torch.nn."""

from copy import deepcopy

import torch
from hypothesis import strategies as st

from clearhead import masks
from clearhead.checkpoints.torch_nn.convert import EncoderDecoder, from_torch_nn

sizes = st.integers(1, 7)


@st.composite
def problems(draw, dtype=torch.float32, with_dead_rows=True):
    """Draw (q, k, v, mask), where the mask is None, a Mask, a bool tensor or a float tensor."""
    batch, heads, queries, keys = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(sizes), draw(sizes)
    width, value_width = draw(sizes), draw(sizes)
    seed = draw(st.integers(0, 2**20))
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    q, k = numbers(batch, heads, queries, width), numbers(batch, heads, keys, width)
    v = numbers(batch, heads, keys, value_width)
    kind = draw(st.sampled_from(["none", "bool", "float", "padding", "causal", "window", "joined"]))
    shape = draw(
        st.sampled_from(
            [
                (queries, keys),
                (batch, 1, queries, keys),
                (batch, heads, queries, keys),
                (1, heads, 1, keys),
                (batch, 1, 1, keys),
            ]
        )
    )
    allowed = torch.rand(shape, generator=generator) < 0.6
    keep = torch.rand((batch, keys), generator=generator) < 0.6
    if not with_dead_rows:
        allowed[..., 0] = True
        keep[:, 0] = True
    mask = {
        "none": lambda: None,
        "bool": lambda: allowed,
        "float": lambda: torch.where(allowed, numbers(shape), float("-inf")),
        "padding": lambda: masks.padding(keep),
        "causal": lambda: masks.causal(keys),
        "window": lambda: masks.window(keys, 2),
        "joined": lambda: masks.padding(keep) & masks.causal(keys) & masks.Mask(length=keys, bias=allowed),
    }[kind]()
    return q, k, v, mask


def dense(mask, queries, keys, batch, heads):
    """Return a mask as a float tensor (batch, heads, queries, keys), computed entry by entry from its definition."""
    if mask is None:
        return torch.zeros(batch, heads, queries, keys)
    if isinstance(mask, torch.Tensor):
        values = torch.where(mask, 0.0, float("-inf")) if mask.dtype == torch.bool else mask
        return values.expand(batch, heads, queries, keys)
    out = torch.zeros(batch, heads, queries, keys)
    if mask.bias is not None:
        out = out + dense(mask.bias, queries, keys, batch, heads)
    for b in range(batch):
        for i in range(queries):
            for j in range(keys):
                position = i + keys - queries
                if (
                    (mask.keep_BM is not None and not mask.keep_BM[b if len(mask.keep_BM) > 1 else 0, j])
                    or (mask.causal and j > position)
                    or (mask.window is not None and abs(j - position) > mask.window)
                ):
                    out[b, :, i, j] = float("-inf")
    return out


NARROWEST = 4
"""Columns of the narrowest layers that are compared in float32.

A norm multiplies a rounding error by up to 1/√ε = 316 if its inputs are almost equal. Inputs of one to three columns
often are. Layers of these widths are compared in float64, where the errors stay far below the bound.
"""


def assert_within(results, expected, bound):
    """Check that each tensor has the expected shape and errors below the bound, relative to its largest value (or 1)."""
    for one, other in zip(results, expected, strict=True):
        assert_all_within([one], [other], bound)


def assert_all_within(results, expected, bound):
    """Check tensors like `assert_within`, relative to the largest value of all of them.

    The gradients of all weights need this: some are zero, as sums of terms that cancel.
    """
    scale = max(1.0, *(float(tensor.detach().abs().max()) for tensor in expected))
    for one, other in zip(results, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        error = float((one - other).detach().abs().max()) / scale
        assert error < bound, f"{error:.2g} is not below {bound}"


def parts(module):
    return list(module) if isinstance(module, EncoderDecoder) else [module]


def gradients(ours):
    """Return the gradients of all weights, in the order of their names."""
    return [tensor.grad for part in parts(ours) for _, tensor in sorted(part.named_parameters())]


def gradients_of_torch(theirs):
    """Return the gradients of a torch.nn module in the order of `gradients`, converted like weights."""
    twin = deepcopy(theirs)
    for parameter, own in zip(twin.parameters(), theirs.parameters(), strict=True):
        parameter.data = own.grad
    return [tensor for part in parts(from_torch_nn(twin)) for _, tensor in sorted(part.state_dict().items())]
