"""`GenerationConfig`: options of a call, files of a checkpoint, and invalid values."""

import json

import pytest
import transformers

from clearhead import GenerationConfig
from clearhead.generation.config_files import load_generation_config, save_generation_config


def folder(tmp_path, generation=None, config=None):
    (tmp_path / "config.json").write_text(json.dumps(config or {"model_type": "bart"}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    return tmp_path


def test_every_key_is_read_and_written(tmp_path):
    data = {
        "num_beams": 4,
        "max_length": 142,
        "min_length": 56,
        "length_penalty": 2.0,
        "early_stopping": True,
        "no_repeat_ngram_size": 3,
        "forced_bos_token_id": 0,
        "forced_eos_token_id": 2,
        "bad_words_ids": [[7], [8, 9]],
        "decoder_start_token_id": 5,
        "eos_token_id": [2, 3],
        "pad_token_id": 1,
        "bos_token_id": 0,
        "renormalize_logits": True,
        "top_h": None,
        "transformers_version": "5.0.0",
        "_from_model_config": True,
    }
    read = load_generation_config(folder(tmp_path, data))
    assert read == GenerationConfig(
        beam_size=4,
        max_length=142,
        min_length=56,
        length_penalty=2.0,
        early_stopping=True,
        no_repeat_ngram_size=3,
        forced_bos_token_id=0,
        forced_eos_token_id=(2,),
        bad_words_ids=((7,), (8, 9)),
        renormalize_logits=True,
        start_id=5,
        eos_ids=(2, 3),
    )
    save_generation_config(read, tmp_path, pad_id=1, start_id=0, eos_ids=(0,))
    assert load_generation_config(tmp_path) == read
    theirs = transformers.GenerationConfig.from_pretrained(tmp_path)
    for key, value in data.items():
        if key not in ("bos_token_id", "transformers_version", "_from_model_config"):
            assert getattr(theirs, key) == value, key


def test_file_written_by_transformers(tmp_path):
    transformers.GenerationConfig(num_beams=3, no_repeat_ngram_size=2).save_pretrained(tmp_path)
    folder(tmp_path)
    assert load_generation_config(tmp_path) == GenerationConfig(beam_size=3, no_repeat_ngram_size=2)


def test_older_files_have_the_keys_in_config_json(tmp_path):
    config = {"model_type": "bart", "num_beams": 2, "max_length": 62, "force_bos_token_to_be_generated": True}
    read = load_generation_config(folder(tmp_path, config=config | {"bos_token_id": 0}))
    assert read == GenerationConfig(beam_size=2, max_length=62, forced_bos_token_id=0)


def test_default_beam_size_is_five():
    assert GenerationConfig().beam_size == 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"num_beam_groups": 2}, "num_beam_groups=2, which changes the output and is not supported"),
        ({"typical_p": 0.9}, "typical_p=0.9, which changes"),
        ({"suppress_tokens": [4]}, r"suppress_tokens=\[4\], which changes"),
        ({"fancy": 1}, "fancy=1, which is unknown"),
        ({"num_beams": 0}, "beam_size must be a whole number of at least 1; got 0"),
        ({"eos_token_id": "x"}, "token ids are whole numbers"),
        ({"min_length": 9, "max_length": 3}, "min_length=9 is more than max_length=3"),
        ({"top_p": 1.5}, "top_p must be from above 0 to 1; got 1.5"),
        ({"temperature": 0.0, "do_sample": True}, "temperature must be above 0"),
        ({"bad_words_ids": [[]]}, "bad_words_ids holds sequences"),
    ],
)
def test_unsupported_file_raises(data, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_generation_config(folder(tmp_path, data))


def test_options_of_a_call_override_the_config():
    settings = GenerationConfig(beam_size=4, max_length=20, min_length=3)
    assert settings.updated(beam_size=None, max_new_tokens=None) == settings
    assert settings.updated(max_new_tokens=7).max_length is None
    assert settings.updated(min_new_tokens=2).min_length == 0
    assert settings.updated(do_sample=True).beam_size == 1
    assert settings.updated(forced_eos_token_id=[3, 4]).forced_eos_token_id == (3, 4)
    assert settings.updated(bad_words_ids=[[1, 2]]).bad_words_ids == ((1, 2),)
    assert GenerationConfig(beam_size=1, do_sample=True).updated(beam_size=3).do_sample is False
    cautious = GenerationConfig(beam_size=4, min_length=56, max_length=142, num_return_sequences=3)
    assert cautious.updated(max_new_tokens=20).min_length == 20
    assert cautious.updated(beam_size=1).num_return_sequences == 1
    assert settings.updated(num_beams=3).beam_size == settings.updated(num_beams=3, beam_size=3).beam_size == 3
    with pytest.raises(ValueError, match="beam_size=2 contradicts num_beams=3; give one of them"):
        settings.updated(num_beams=3, beam_size=2)
    with pytest.raises(TypeError, match="no option 'zzz'; it takes beam_size, num_beams, "):
        settings.updated(zzz=3)
    with pytest.raises(ValueError, match="sampling draws one token at a time"):
        settings.updated(do_sample=True, beam_size=2)
    with pytest.raises(ValueError, match="num_return_sequences=5 is more than beam_size=4"):
        settings.updated(num_return_sequences=5)
    with pytest.raises(ValueError, match="min_new_tokens=9 is more than max_new_tokens=3"):
        settings.updated(min_new_tokens=9, max_new_tokens=3)


@pytest.mark.parametrize(
    ("options", "prompt", "longest", "length"),
    [
        ({}, 1, None, 257),
        ({}, 1, 60, 60),
        ({"max_new_tokens": 10}, 3, None, 13),
        ({"max_length": 10}, 3, None, 10),
        ({"max_length": 100}, 3, 60, 60),
    ],
)
def test_max_target_length(options, prompt, longest, length):
    assert GenerationConfig(**options).max_target_length(prompt, longest) == length


def test_lengths_without_room_for_a_token_raise():
    with pytest.raises(ValueError, match="nothing can be generated"):
        GenerationConfig(max_length=3).max_target_length(3, None)
    with pytest.raises(ValueError, match="at least 9 new tokens and at most 5"):
        GenerationConfig(min_new_tokens=9).max_target_length(1, 6)
