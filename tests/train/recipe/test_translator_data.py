"""The generated sentence pairs of the translators: both sides have the same numbers, times and names."""

import importlib
import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "recipes" / "translator"
NAMES = ("numerals", "people", "slots", "copies", "generate", "make_data")


@pytest.fixture(scope="module")
def scripts():
    """The modules of recipes/translator, by name."""
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: importlib.import_module(name) for name in NAMES}
    finally:
        sys.path.remove(str(FOLDER))
        for name in NAMES:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module", params=["de", "en"])
def pairs(scripts, request):
    return scripts["generate"].generate(4000, request.param)


def words_of(scripts):
    """Return the numbers in words of the texts: {"three": 3, "drei": 3, ...}; not one, which is an article, too."""
    numerals = scripts["numerals"]
    words = {"hundert": 100, "noon": 12}
    for number in [*range(2, 1000), *range(1000, 901_000, 1000)]:
        words[numerals.english(number)] = words[numerals.german(number, "ein")] = number
    for number in range(2, 32):
        words[numerals.english_ordinal(number)] = words[f"{numerals.german_ordinal(number)}n"] = number
    for year in range(1850, 2025):
        words[numerals.english_year(year)] = words[numerals.german_year(year)] = year
    return words


def numbers(text, words, pattern):
    """Return the numbers of a text from two, in digits and in words, with hours of 24."""
    text = re.sub(
        r"(\d+)([:.]\d\d)? ?p\.?m\b",
        lambda match: f"{int(match[1]) % 12 + 12}{match[2] or ''}",
        text,
        flags=re.IGNORECASE,
    )
    text = re.sub(r"(?<=\d)[., ](?=\d{3}(?!\d))", "", text)
    found = {int(number) for number in re.findall(r"\d+", text)}
    return (found | {words[word] for word in pattern.findall(text.lower())}) - {0, 1}


@pytest.mark.slow
def test_every_number_of_one_side_is_in_the_other(scripts, pairs):
    words = words_of(scripts)
    longest_first = sorted(words, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])")
    count = 0
    for english, german in pairs:
        if not re.search("half|quarter", english):  # the next test has these
            found = numbers(english, words, pattern)
            assert found == numbers(german, words, pattern), (english, german)
            count += len(found) > 0
    assert count > 1500


def test_half_past_seven_is_halb_acht(scripts, pairs):
    numerals, count = scripts["numerals"], 0
    german_of = {numerals.english(hour): numerals.german(hour) for hour in range(1, 13)}
    following = {numerals.english(hour): numerals.german(hour % 12 + 1) for hour in range(1, 13)}
    for english, german in pairs:
        if match := re.search(r"half (?:past )?(\w+)", english):
            assert f"halb {following[match[1]]}" in german, (english, german)
            count += 1
        for unit, name in (("past", "nach"), ("to", "vor")):
            if match := re.search(rf"quarter {unit} (\w+)", english):
                assert re.search(rf"[Vv]iertel {name} {german_of[match[1]]}\b", german), (english, german)
                count += 1
    assert count > 50


def test_names_and_placeholders_are_the_same_on_both_sides(scripts, pairs):
    for english, german in pairs:
        signs = [sorted(re.findall(r"[⓵-⓾]|\S+@\S+|[α-ωа-я]+|[😀-🙏]", side)) for side in (english, german)]
        assert [sign.rstrip(".?!,") for sign in signs[0]] == [sign.rstrip(".?!,") for sign in signs[1]], (
            english,
            german,
        )


def test_the_target_has_the_usual_forms(scripts):
    generate = scripts["generate"].generate
    assert not any(re.search(r"\dpm|\d PM", english) for english, _ in generate(4000, "en"))
    assert any(re.search(r"\dpm|\d PM", english) for english, _ in generate(4000, "de"))


def test_frames_have_the_same_slots(scripts):
    for frames in scripts["generate"].frames().values():
        for english, german in frames:
            slots = [sorted(re.findall(r"\{(\w+)\}", side)) for side in (english, german)]
            assert slots[0] == slots[1]
            assert english[-1] == german[-1] or "{symbol}" in english


def test_generated_pairs_depend_on_the_seed_only(scripts):
    generate = scripts["generate"].generate
    assert generate(300, "de") == generate(300, "de") != generate(300, "de", seed=2)
    assert len(set(generate(3000, "de"))) == 3000


@pytest.mark.parametrize(("direction", "side"), [("en-de", 0), ("de-en", 1)])
def test_parts_share_no_sentence(scripts, tmp_path, monkeypatch, direction, side):
    monkeypatch.setattr(scripts["make_data"], "NUM_VALIDATION", 100)
    train = [(f"I saw number {number // 2}.", f"Ich sah Nummer {number // 3}.") for number in range(6000)]
    generated = scripts["generate"].generate(500, direction[-2:], 1)[0]
    dev = [("I saw number 7.", "Ich sah etwas."), ("I saw it.", "Ich sah Nummer 9."), generated]
    for part, pairs in (("train", train), ("dev", dev)):
        for index, language in enumerate(("en", "de")):
            text = "".join(f"{pair[index]}\n" for pair in pairs)
            (tmp_path / f"{part}.{language}").write_text(text, encoding="utf-8")
    out = tmp_path / "out"
    assert scripts["make_data"].main([direction, str(tmp_path), str(out), "--generated", "500"]) == 0
    parts = {part: scripts["make_data"].read(out, part) for part in ("train", "valid", "dev")}
    assert len({pair[side] for pair in parts["valid"]}) == 100
    for one, other in (("train", "valid"), ("train", "dev"), ("valid", "dev")):
        for index in (0, 1):
            assert not {pair[index] for pair in parts[one]} & {pair[index] for pair in parts[other]}
    assert len(parts["train"]) > 6000


def test_placeholders_replace_what_both_sides_have(scripts):
    import random

    replaced = scripts["copies"].with_placeholders(
        ("Tom bought 17 pens in 1984.", "Tom kaufte 1984 17 Stifte."), random.Random(3)
    )
    assert replaced is not None
    assert sorted(re.findall("[⓵-⓾]", replaced[0])) == sorted(re.findall("[⓵-⓾]", replaced[1])) != []
    assert scripts["copies"].with_placeholders(("Was it good?", "Was war gut?"), random.Random(3)) is None
