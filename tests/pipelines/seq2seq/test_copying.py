"""URLs, emoji, numbers and words of other scripts are the same in a translation."""

import random
import re

import pytest

from clearhead import TextToText
from clearhead.pipelines.seq2seq.copying import PLACEHOLDERS, CopyRule, Piece, Placeholder, ProtectedText, join_pieces
from clearhead.pipelines.seq2seq.protected_spans import find_spans, lost_numbers
from clearhead.tokenizers.bpe import train_bpe

LATIN = "äöüÄÖÜßéèàôíá„“’–"
LETTERS = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789 .,()?"
LINES = [f"⓵ and {name} saw the old bridge, in {name}. {LETTERS}" for name in PLACEHOLDERS] * 3


def spans(text, **options):
    found = find_spans(text, lambda character: character.isascii() or character in LATIN, **options)
    return [text[span.start : span.end] for span in found]


@pytest.fixture(scope="module")
def rule():
    """A rule for a tokenizer with placeholders."""
    return CopyRule(train_bpe(LINES, vocab_size=500))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Where can I buy a ticket?", []),
        ("Die Straße heißt „Schöne Aussicht“ – glaube ich.", []),
        ("Mr. Smith's train leaves at 7:30 p.m. on the 3rd.", []),
        ("It costs 1,250 euros or $4.75.", []),
        ("Write to me.too+x@mail.example.org.", ["me.too+x@mail.example.org"]),
        (
            "See https://example.com/a_(b)?c=1#d, or www.example.de!",
            ["https://example.com/a_(b)?c=1#d", "www.example.de"],
        ),
        ("Look at example.com/about.", ["example.com/about"]),
        ("I love you 😀!", ["😀"]),
        ("A family 👨‍👩‍👧 and a flag 🇩🇪 and ❤️ and 1️⃣.", ["👨‍👩‍👧", "🇩🇪", "❤️", "1️⃣"]),
        ("He said Καλημέρα, κόσμε! to us.", ["Καλημέρα, κόσμε"]),
        ("She reads Война и мир today.", ["Война и мир"]),
        ("They wrote 東京は、楽しい。 here.", ["東京は、楽しい。"]),
        ("He lives in Łódź.", ["Łódź"]),
        ("Call +49 (30) 123 45-67 now.", ["+49 (30) 123 45-67"]),
        ("Order 4711 is not 1234567.", ["1234567"]),
        ("Not 1234 but 12345 of 123,456.", ["12345"]),
        ("Flight LH-4711 and room B12 by @tom_s for #fun.", ["LH-4711", "B12", "@tom_s", "#fun"]),
        ("The file max_length is on 192.168.0.1 since 2024-05-03.", ["max_length", "192.168.0.1", "2024-05-03"]),
        ("At 7PM, and 7 AM.", []),
    ],
)
def test_spans(text, expected):
    assert spans(text) == expected


def test_all_numbers_are_spans_if_asked():
    assert spans("He paid 1,250.50 for 3 of 12 on the 3rd.", numbers=True) == ["1,250.50", "3", "12"]


@pytest.mark.parametrize(
    ("source", "output", "lost"),
    [
        ("He has 17 cats.", "Er hat 17 Katzen.", []),
        ("He has 17 cats.", "Er hat 71 Katzen.", ["17"]),
        ("He has 3 cats.", "Er hat drei Katzen.", []),
        ("He has 10 cats.", "Sie hatten einen Kater.", ["10"]),
        ("He has 17 cats.", "Er hat 5 Katzen.", ["17"]),
        ("9" * 4 + ",999" * 3000, "9", ["9" * 4 + ",999" * 3000]),
        ("It is 2:30.", "Es ist halb drei.", []),
        ("At 7:30 pm.", "Um 19.30 Uhr.", []),
        ("At 19:30 Uhr.", "At 7:30 p.m.", []),
        ("At 7:00.", "Um 7 Uhr.", []),
        ("It costs 1,250.50 euros.", "Es kostet 1.250,50 Euro.", []),
        ("It costs 1,250 euros.", "Es kostet 1.520 Euro.", ["1,250"]),
        ("On the 3rd of May.", "Am dritten Mai.", []),
        ("2 girls are sitting.", "Beide Mädchen sitzen.", []),
    ],
)
def test_lost_numbers(source, output, lost):
    assert lost_numbers(source, output) == lost


def test_placeholders_are_restored_where_the_output_has_them(rule):
    protected = rule.protect("Ask a@b.org and c@d.org who they are 😀")
    assert protected.core == "Ask ⓵ and ⓶ who they are"
    assert protected.restore("⓶ und ⓵ fragen.") == "c@d.org und a@b.org fragen. 😀"
    assert not protected.loses("⓶ und ⓵ fragen.")
    assert protected.loses("⓵ und ⓵ fragen.")
    assert protected.loses("⓵ fragen.")
    assert protected.restore("⓵ fragen.") == "a@b.org fragen. c@d.org 😀"


def test_symbols_that_touch_words_touch_them_again(rule):
    protected = rule.protect("the 😀old bridge")
    assert protected.core == "the ⓵ old bridge"
    assert protected.restore("die ⓵ alte Brücke") == "die 😀alte Brücke"


def test_placeholders_in_a_text_are_copied(rule):
    assert rule.protect("⓷ saw ⓵.").placeholders == {"⓵": Placeholder("⓷"), "⓶": Placeholder("⓵")}


@pytest.mark.parametrize("text", ["😀", "Привет, как дела?", "...", "https://example.com/", "12345678", "* & *"])
def test_texts_without_words_are_copied(rule, text):
    assert rule.protect(text) == ProtectedText("", before=text)


def test_more_spans_than_placeholders_are_translated_in_pieces(rule):
    assert rule.protect(" or ".join(f"a{number}@b.org" for number in range(11))).split


def test_pieces_are_the_text(rule):
    text = " Ask a@b.org, or call 17 of the 23 people (now) 😀."
    pieces = rule.pieces(text)
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.text for piece in pieces if not piece.is_copied] == ["Ask", "or call", "of the", "people (now)"]
    assert join_pieces([Piece("old", False), Piece(" 1", True)], ["alt."]) == "alt 1"


def test_thousands_separators_are_those_of_the_target():
    rule = CopyRule(train_bpe(LINES, vocab_size=500), ("en", "de"))
    protected = rule.protect("I have 1,250.50 or 3.5 or 12345", numbers=True)
    assert [mark.text for mark in protected.placeholders.values()] == ["1.250,50", "3.5", "12345"]
    assert Piece("1.250", True) in rule.pieces("I have 1,250 things")


def test_invented_placeholders_are_removed(rule):
    protected = rule.protect("the old bridge")
    assert protected.loses("die ⓷ alte Brücke")
    assert protected.replace_in_stream("die ⓷alte") == "die alte"
    assert ProtectedText("⓷").replace_in_stream("⓷") == "⓷"


def test_half_a_surrogate_pair_is_reported_with_its_position(translator):
    with pytest.raises(ValueError, match="text 1 has half a surrogate pair at character 5"):
        translator.generate(["It is.", "It is\ud83d."])


def test_a_model_without_placeholders_does_not_have_them():
    assert not CopyRule(train_bpe(["the old bridge"] * 3, vocab_size=300)).has_placeholders


# 200 made sentences, with the translators in the package


@pytest.fixture(scope="module")
def translator():
    return TextToText.from_pretrained(precision="float32", device="cpu")


@pytest.fixture(scope="module")
def from_german():
    return TextToText.from_pretrained("tatoeba-de-en", precision="float32", device="cpu")


ENGLISH_FRAMES = [
    ("I love you {}", "emoji"), ("Good morning {} How are you?", "emoji"), ("This {} is for my mother.", "emoji"),
    ("What does {} mean?", "scripts"), ("{} is a word.", "scripts"), ("He said {} to me.", "scripts"),
    ("You will find it on {}.", "urls"), ("Have you seen {} yet?", "urls"), ("Open {} and read it.", "urls"),
    ("Please write to {} today.", "mails"), ("My address is {}, I think.", "mails"), ("Is {} correct?", "mails"),
    ("The number is {}.", "numbers"), ("There are {} people in the city.", "numbers"),
    ("He bought {} apples and {} pears.", "numbers"),
]  # fmt: skip
GERMAN_FRAMES = [
    ("Ich liebe dich {}", "emoji"), ("Guten Morgen {} Wie geht es dir?", "emoji"), ("Das {} ist für meine Mutter.", "emoji"),
    ("Was bedeutet {}?", "scripts"), ("{} ist ein Wort.", "scripts"), ("Er sagte {} zu mir.", "scripts"),
    ("Du findest es auf {}.", "urls"), ("Hast du {} schon gesehen?", "urls"), ("Öffne {} und lies es.", "urls"),
    ("Schreib bitte heute an {}.", "mails"), ("Meine Adresse ist {}, glaube ich.", "mails"), ("Stimmt {}?", "mails"),
    ("Die Nummer ist {}.", "numbers"), ("In der Stadt gibt es {} Menschen.", "numbers"),
    ("Er kaufte {} Äpfel und {} Birnen.", "numbers"),
]  # fmt: skip


def made_sentences(frames, count=200):
    r = random.Random(7)
    values = {
        "emoji": ["😀", "😂", "🎉🎂", "👩‍🚀", "❤️", "🇬🇷", "👍🏽"],
        "scripts": ["Καλημέρα", "ευχαριστώ πολύ", "Αθήνα", "Привет", "Доброе утро", "Москва"],
        "urls": ["https://example.com/a?b=1&c=2", "www.example.org/über-uns", "http://a.io/x_y/~z#top", "example.de"],
        "mails": ["me@example.org", "anna.maria+news@mail.example.co.uk", "x_9@y-z.de"],
        "numbers": [str(r.randint(2, 10 ** r.randint(2, 9))) for _ in range(100)],
    }
    return [
        (text.format(*own), own)
        for text, kind in (frames[index % len(frames)] for index in range(count))
        for own in [[r.choice(values[kind]) for _ in range(text.count("{}"))]]
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "frames"), [("translator", ENGLISH_FRAMES), ("from_german", GERMAN_FRAMES)])
def test_200_made_sentences_keep_what_is_copied(name, frames, request):
    made = made_sentences(frames)
    outputs = request.getfixturevalue(name).generate([text for text, _ in made], beam_size=1)
    for (text, copied), output in zip(made, outputs, strict=True):
        for span in copied:
            assert span in output or span in re.sub(r"(?<=\d)[.,](?=\d{3})", "", output), (text, output)


@pytest.mark.slow
def test_texts_without_spans_have_the_same_tokens_with_and_without_the_rule(translator):
    plain = TextToText.from_pretrained(precision="float32", device="cpu", copy_unknown=False)
    texts = ["Where can I buy a ticket?", "My grandmother bakes bread.", ""]
    assert plain.generate(texts, return_details=True) == translator.generate(texts, return_details=True)
    assert plain.copy_rule is None


def test_streams_copy_too(translator):
    for text in ("I love you 😀", "What does Привет mean?", "Write to me@example.org today."):
        streamed = "".join(token.text for token in translator.stream(text))
        assert all(span in streamed for span in spans(text))


def test_several_outputs_all_have_the_spans(translator):
    output = translator.generate("What does Привет mean?", num_return_sequences=3, beam_size=3, return_details=True)
    assert len(output.n_best) == 3
    assert output.n_best[0].text == output.text
    assert all("Привет" in other.text for other in output.n_best)
