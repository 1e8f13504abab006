"""Tiny random encoder–decoders of each family, built by transformers."""

import torch
import transformers

BART = {
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 60,
    "init_std": 0.4,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}
T5 = {
    "vocab_size": 99,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 2,  # as many in the decoder: transformers 5.23 builds T5's cache by the encoder's number
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "initializer_factor": 1.0,
    "decoder_start_token_id": 0,
}
IDS = {"pad_token_id": 98, "eos_token_id": 0, "decoder_start_token_id": 98, "forced_eos_token_id": None}
KINDS = {
    "marian": ("MarianConfig", "MarianMTModel", BART | IDS | {"scale_embedding": True, "activation_function": "swish"}),
    "marian two vocabularies": (
        "MarianConfig",
        "MarianMTModel",
        BART | IDS | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 99},
    ),
    "bart": ("BartConfig", "BartForConditionalGeneration", BART | {"forced_eos_token_id": None}),
    "mbart": (
        "MBartConfig",
        "MBartForConditionalGeneration",
        BART | {"scale_embedding": True, "decoder_start_token_id": 2, "forced_eos_token_id": None},
    ),
    "pegasus": ("PegasusConfig", "PegasusForConditionalGeneration", BART | {"forced_eos_token_id": None}),
    "m2m_100": ("M2M100Config", "M2M100ForConditionalGeneration", BART),
    "t5": ("T5Config", "T5ForConditionalGeneration", T5),
    "t5 v1.1": (
        "T5Config",
        "T5ForConditionalGeneration",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "mt5": ("MT5Config", "MT5ForConditionalGeneration", T5),
}
FAMILIES = list(KINDS)


def make(kind, folder, *, lively=False, **changes):
    """Write a tiny random model of a family into a folder; return transformers' model.

    Args:
        kind: one of FAMILIES.
        folder: the folder.
        lively: whether generated texts vary in content and length; a random model mostly repeats one token.
        changes: changed fields of the config.
    """
    torch.manual_seed(0)
    config_class, model_class, sizes = KINDS[kind]
    if lively and "t5" not in kind:
        changes = {"tie_word_embeddings": False} | changes
    config = getattr(transformers, config_class)(**(sizes | changes))
    model = getattr(transformers, model_class)(config).eval()
    if kind in ("t5 v1.1", "mt5") or (lively and kind == "t5"):
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    with torch.no_grad():  # transformers starts norms and biases at 1 and 0, which would hide a swap of them
        for name, parameter in model.named_parameters():
            if "norm" in name.lower() or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.2)
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()
        if lively:
            _enliven(model)
    model.save_pretrained(folder)
    return model


def _enliven(model):
    """Scale the sublayers so that none dominates, and the end token so that it occurs sometimes."""
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("fc2.weight", "out_proj.weight", "wo.weight", ".o.weight")):
            parameter.mul_(0.6 if "decoder" in name and ("self_attn" in name or "SelfAttention" in name) else 0.3)
    ends = model.config.eos_token_id
    model.get_output_embeddings().weight[ends] *= 1.3
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.mul_(0.3)
        model.final_logits_bias[:, ends] += 1.5
