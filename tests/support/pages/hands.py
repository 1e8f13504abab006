"""Changes by hand in Python: a model with a head or a layer off, and its greedy output after given tokens."""

from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def heads_off(model, heads):
    """Zero the values of heads, [{"part", "layer", "head"}], in front of the output projections of their layers."""
    with ExitStack() as stack:
        for one in heads:
            layers = model.encoder.layers if one["part"] == "encoder" else model.decoder.layers
            layer = layers[one["layer"]]
            attention = layer.cross_attention if one["part"] == "cross" else layer.attention
            width = attention.out.in_features // attention.num_heads

            def zero(module, inputs, start=one["head"] * width, width=width):
                values = inputs[0].clone()
                values[..., start : start + width] = 0
                return (values,)

            stack.callback(attention.out.register_forward_pre_hook(zero).remove)
        yield


@contextmanager
def layers_off(model, layers):
    """Let layers, [{"part", "layer"}], return their input."""
    with ExitStack() as stack:
        for one in layers:
            layer = getattr(model, one["part"]).layers[one["layer"]]
            stack.callback(layer.register_forward_hook(lambda layer, inputs, output: inputs[0]).remove)
        yield


def next_tokens(model, source, target, mask=None):
    """Return the logits that follow the ids of a target, without its start token."""
    ids = torch.tensor([[model.config.start_id, *target]])
    with torch.inference_mode():
        return model(torch.tensor([source]), ids, mask)[0, -1]


def greedy(model, source, target, length, eos, mask=None):
    """Return target ids, continued greedily to `length` tokens or the end."""
    ids = list(target)
    while len(ids) < length and (not ids or ids[-1] != eos):
        ids.append(int(next_tokens(model, source, ids, mask).argmax()))
    return ids
