"""Languages of multilingual translation models: their tokens equal transformers', and wrong ones are refused."""

import pytest
from support.models import spm
from support.models.spm import TYPES, pair

from clearhead.checkpoints import load_tokenizer
from clearhead.tokenizers import languages


@pytest.mark.parametrize(
    ("family", "source", "target", "words"),
    [
        ("m2m_100", "de", "fr", ["__de__", "</s>"]),
        ("mbart", "de_DE", "ro_RO", ["</s>", "de_DE"]),
        ("mbart50", "de_DE", "sl_SI", ["de_DE", "</s>"]),
        ("nllb", "deu_Latn", "zul_Latn", ["deu_Latn", "</s>"]),
        ("mbart-json", "de_DE", "ro_RO", ["</s>", "de_DE"]),
        ("mbart50-json", "de_DE", "sl_SI", ["de_DE", "</s>"]),
        ("nllb-json", "deu_Latn", "zul_Latn", ["deu_Latn", "</s>"]),
    ],
)
def test_language_tokens_equal_transformers(tmp_path, family, source, target, words):
    ours, theirs = pair(family, tmp_path)
    configured = ours.for_languages(source, target)
    theirs.src_lang = source
    assert (configured.source, configured.target) == (source, target)
    assert configured.tokenizer.ids_to_tokens(configured.tokenizer.encode([""])[0].ids) == words
    for text in spm.TEXTS:
        expected = theirs(text)["input_ids"]
        assert configured.tokenizer.encode([text])[0].ids == expected
        cut = theirs(text, truncation=True, max_length=5)["input_ids"]
        assert configured.tokenizer.encode([text], max_length=5)[0].ids == cut
    assert configured.tokenizer.languages == ours.languages
    # the token that transformers' translation pipeline forces
    inputs = theirs._build_translation_inputs("x", src_lang=source, tgt_lang=target, return_tensors=None)
    # the first mBART starts the target with its language instead
    assert (configured.forced_bos_token_id or configured.start_id) == inputs["forced_bos_token_id"]
    # the original tokenizer is unchanged
    assert ours.encode(["x"])[0].ids != configured.tokenizer.encode(["x"])[0].ids
    # the saved files contain the languages
    configured.tokenizer.save(tmp_path, None)
    again = load_tokenizer(tmp_path, TYPES.get(family.split("-")[0], family.split("-")[0]))
    assert again.encode(["x"]) == configured.tokenizer.encode(["x"])
    assert again.for_languages(None, None).forced_bos_token_id == configured.forced_bos_token_id


def test_languages_of_the_families(tmp_path):
    results = {}
    for family in ("m2m_100", "mbart", "mbart50", "nllb", "t5", "pegasus"):
        (tmp_path / family).mkdir()
        results[family] = pair(family, tmp_path / family)[0].languages
    assert results == {
        "m2m_100": languages.M2M100_CODES["m2m100"],
        "mbart": languages.MBART_CODES,
        "mbart50": languages.MBART50_CODES,
        "nllb": languages.NLLB_CODES,
        "t5": (),
        "pegasus": (),
    }


def test_legacy_nllb_puts_the_language_last(tmp_path):
    reference = spm.theirs("nllb", legacy_behaviour=True)
    reference.save_pretrained(tmp_path / "json")
    (tmp_path / "plain").mkdir()
    spm.plain("nllb", tmp_path / "plain", legacy_behaviour=True)
    for name in ("json", "plain"):
        ours = load_tokenizer(tmp_path / name, "m2m_100")
        assert ours.encode(["The bridge"])[0].ids == reference("The bridge")["input_ids"]
        assert ours.ids_to_tokens(ours.encode([""])[0].ids) == ["</s>", "eng_Latn"]


def test_marian_prepends_the_target_language(tmp_path):
    ours, theirs = pair("marian-codes", tmp_path)
    assert ours.languages == ("fra", "deu")
    configured = ours.for_languages(None, "deu")
    assert (configured.forced_bos_token_id, configured.source, configured.target) == (None, None, "deu")
    for text in (*spm.TEXTS[:12], ">>fra<< twice", ">>no\ncode<< x"):
        assert ours.encode([text])[0].ids == theirs(text)["input_ids"]
        assert configured.tokenizer.encode([text])[0].ids == theirs(f">>deu<< {text}")["input_ids"]
    cut = theirs(">>deu<< The old bridge", truncation=True, max_length=4)["input_ids"]
    assert configured.tokenizer.encode(["The old bridge"], max_length=4)[0].ids == cut
    with pytest.raises(ValueError, match="takes a target language only; leave the source language out: 'en'"):
        ours.for_languages("en", "deu")
    with pytest.raises(ValueError, match="Choose the target language: fra, deu$"):
        ours.for_languages(None, None)


def test_bilingual_marian_has_no_language_tokens(tmp_path):
    ours, _ = pair("marian", tmp_path)
    assert ours.languages == ()
    assert ours.for_languages(None, None).forced_bos_token_id is None
    with pytest.raises(
        ValueError, match="translates between fixed languages; leave out source_lang=.en. and target_lang=.de."
    ):
        ours.for_languages("en", "de")


def test_wrong_and_missing_languages(tmp_path):
    ours = load_tokenizer(spm.m2m100(tmp_path, language_codes="wmt21"), "m2m_100")
    with pytest.raises(
        ValueError, match="does not support the language 'xx'. Use one of: en, ha, is, ja, cs, ru, zh, de$"
    ):
        ours.for_languages("xx", "de")
    with pytest.raises(ValueError, match="does not support the language 'en_XX'"):
        ours.for_languages(None, "en_XX")
    with pytest.raises(ValueError, match="Choose the target language: en, ha"):
        ours.for_languages("en", None)
    with pytest.raises(ValueError, match="does not support the language ''"):
        ours.for_languages("", "de")
    spm.m2m100(tmp_path, language_codes="wmt21", src_lang="de", tgt_lang="is")
    configured = load_tokenizer(tmp_path, "m2m_100").for_languages(None, None)
    assert (configured.source, configured.target) == ("de", "is")
