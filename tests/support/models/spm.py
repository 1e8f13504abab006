"""Tiny sentencepiece models, trained on a few sentences, and transformers' tokenizers for them."""

import functools
import io
import json

import sentencepiece
import transformers
from tokenizers import AddedToken, ByteLevelBPETokenizer, Regex, normalizers, pre_tokenizers

from clearhead.checkpoints import load_tokenizer
from clearhead.tokenizers import languages

ENGLISH = """\
The old bridge was closed after the storm, and nobody could cross the river.
A small boat took the children to school every morning; they liked it well.
In spring the water was high, so the school stayed closed for three days.
The engineers built a new bridge of stone and steel. It was opened in June.
"Is it safe?" asked the miller. "Safer than your boat!" said the engineer.
"""
GERMAN = """\
Die alte Brücke wurde nach dem Sturm geschlossen, und niemand kam über den Fluss.
Ein kleines Boot brachte die Kinder jeden Morgen zur Schule; das gefiel ihnen.
Im Frühling stand das Wasser hoch, und die Schule blieb drei Tage lang zu.
Die Ingenieure bauten eine neue Brücke aus Stein und Stahl. Sie hält bis heute.
"Ist sie sicher?", fragte der Müller. "Sicherer als dein Boot!", hieß es.
"""
CLASSES = {"marian": transformers.MarianTokenizer, "m2m_100": transformers.M2M100Tokenizer}
PLAIN = ["t5", "pegasus", "mbart", "mbart50", "nllb"]
TYPES = {"mbart50": "mbart", "nllb": "m2m_100"}
TEXTS = [
    "",
    " ",
    "The old bridge",
    "  The   old  bridge  ",
    "new bridge, old boat!\n\tsecond line",
    "Brücke über den Fluß – ﬁne ½ ™",
    "漢字 and emoji 🌉🌉 x",
    "a</s>b",
    "<pad> in front",
    " an <unk> and a <mask> here",
    "storm\u00a0storm\u200bstorm\u3000storm",
    "e\u0301 \u00e9 \ufb01",
    "▁ ▁▁x",
    "\x00 \x07",
    "word " * 30,
]


@functools.cache
def spm(text=ENGLISH, kind="unigram", size=120, t5=False, symbols=()):
    """Return the bytes of a sentencepiece model."""
    model = io.BytesIO()
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1} if t5 else {}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines() * 3),
        model_writer=model,
        model_type=kind,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
        user_defined_symbols=",".join(symbols),
        **ids,
    )
    return model.getvalue()


def pieces(data):
    """Return the pieces of a sentencepiece model with their scores."""
    model = sentencepiece.SentencePieceProcessor(model_proto=data)
    return [(model.id_to_piece(number), model.get_score(number)) for number in range(model.get_piece_size())]


def charsmap(data):
    """Return the character normalization table of a sentencepiece model: field 2 of its field 3."""
    return _field(_field(data, 3), 2)


def write_json(path, data):
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def marian(folder, *, codes=(), separate=False, **config):
    """Write the files of a Marian tokenizer, as the conversion from Marian's files does."""
    source, target = spm(ENGLISH), spm(GERMAN, "bpe", 150)
    tokens = [piece for piece, _ in pieces(source) + ([] if separate else pieces(target))]
    write_json(folder / "vocab.json", _marian_vocabulary([*tokens, *(f">>{code}<<" for code in codes)]))
    if separate:
        write_json(folder / "target_vocab.json", _marian_vocabulary([piece for piece, _ in pieces(target)]))
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)
    config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate, "model_max_length": 512} | config
    write_json(folder / "tokenizer_config.json", config)
    return folder


def m2m100(folder, **config):
    """Write the files of an M2M100 tokenizer, in the format of the published ones."""
    data = spm(ENGLISH + GERMAN, "bpe", 200)
    words = ["<s>", "<pad>", "</s>", "<unk>", *(piece for piece, _ in pieces(data)[3:])]
    write_json(folder / "vocab.json", {word: number for number, word in enumerate(words)})
    (folder / "sentencepiece.bpe.model").write_bytes(data)
    codes = languages.M2M100_CODES[config.get("language_codes", "m2m100")]
    listed = {"additional_special_tokens": [f"__{code}__" for code in codes]}
    write_json(folder / "special_tokens_map.json", listed)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "M2M100Tokenizer"} | config)
    return folder


def plain(family, folder, **config):
    """Write a folder with only a sentencepiece model."""
    t5 = family in ("t5", "pegasus")
    data = spm(ENGLISH + GERMAN, "bpe" if family == "nllb" else "unigram", 200, t5)
    name = "spiece.model" if t5 else "sentencepiece.bpe.model"
    (folder / name).write_bytes(data)
    kinds = {"t5": "T5", "pegasus": "Pegasus", "mbart": "MBart", "mbart50": "MBart50", "nllb": "Nllb"}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": f"{kinds[family]}Tokenizer"} | config)
    return folder


def theirs(family, *, published=True, **options):
    """Return transformers' tokenizer of the same sentencepiece model as `plain`, with the published ids.

    Args:
        published: with the normaliser of the published tokenizer.json files, which transformers' own converter wrote.
            The classes of transformers 5 build others: they keep a blank at the end, and mBART's normalises nothing.
    """
    t5 = family in ("t5", "pegasus")
    data = spm(ENGLISH + GERMAN, "bpe" if family == "nllb" else "unigram", 200, t5)
    own, table = pieces(data), charsmap(data)
    fairseq = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *own[3:]]
    options = {"_spm_precompiled_charsmap": table} | options
    match family:
        case "t5":
            vocabulary = own + [(f"<extra_id_{number}>", 0.0) for number in reversed(range(100))]
            tokenizer = transformers.T5Tokenizer(vocab=vocabulary, **options)
        case "pegasus":
            first = [("<pad>", 0.0), ("</s>", 0.0), ("<mask_1>", 0.0), ("<mask_2>", 0.0)]
            first += [(f"<unk_{number}>", -100.0) for number in range(2, 103)]
            tokenizer = transformers.PegasusTokenizer(vocab=first + own[2:], **options)
        case "mbart":
            vocabulary = fairseq + [(code, 0.0) for code in (*languages.MBART_CODES, "<mask>")]
            tokenizer = transformers.MBartTokenizer(vocab=vocabulary, **options)
        case "mbart50":
            vocabulary = fairseq + [(code, 0.0) for code in (*languages.MBART50_CODES, "<mask>")]
            tokenizer = transformers.MBart50Tokenizer(vocab=vocabulary, **options)
        case "nllb":
            tokens = [*(piece for piece, _ in fairseq), *languages.NLLB_CODES, "<mask>"]
            vocabulary = {token: number for number, token in enumerate(tokens)}
            # theirs looks for <mask> after the normaliser, which leaves a blank of two newlines in front of it
            mask = AddedToken("<mask>", lstrip=True, special=True, normalized=not published)
            tokenizer = transformers.NllbTokenizer(vocab=vocabulary, merges=_merges(own), mask_token=mask, **options)
    if published:
        blanks = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "\u2581")]
        tokenizer.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(table), *blanks])
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    return tokenizer


def bart(folder, **config):
    """Write the files of a BART tokenizer: byte-level BPE, trained by `tokenizers`."""
    backend = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    backend.train_from_iterator(
        ENGLISH.splitlines(), vocab_size=400, min_frequency=2, special_tokens=special, show_progress=False
    )
    backend.save_model(str(folder))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BartTokenizer"} | config)
    return folder


def bart_theirs(folder, **options):
    """Return transformers' tokenizer of the same files; a space before <mask> belongs to it, as in the published one."""
    mask = AddedToken("<mask>", lstrip=True, special=True, normalized=False)
    return transformers.BartTokenizer(
        vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), mask_token=mask, **options
    )


def _marian_vocabulary(tokens):
    ordered = dict.fromkeys(["</s>", "<unk>", *(token for token in tokens if token != "<s>"), "<pad>"])
    return {token: number for number, token in enumerate(ordered)}


def _merges(own):
    """Return the merges of a sentencepiece BPE model: all pairs of pieces that form a piece, best score first."""
    scores = dict(own[3:])
    merges = [
        (piece[:cut], piece[cut:], score)
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    return [(left, right) for left, right, _ in sorted(merges, key=lambda merge: -merge[2])]


def _field(data, field_number):
    """Return a bytes field of a protocol buffer message."""

    def number(position):
        value = shift = 0
        while True:
            byte = data[position]
            value |= (byte & 127) << shift
            position, shift = position + 1, shift + 7
            if byte < 128:
                return value, position

    position = 0
    while position < len(data):
        tag, position = number(position)
        if tag & 7 == 2:
            length, position = number(position)
            if tag >> 3 == field_number:
                return data[position : position + length]
            position += length
        elif tag & 7 == 0:
            _, position = number(position)
        else:
            position += {1: 8, 5: 4}[tag & 7]
    return b""


def pair(case, folder):
    """Return our tokenizer and transformers', from the same files."""
    family, _, kind = case.partition("-")
    if family in CLASSES:
        if family == "marian":
            marian(folder, codes=("fra", "deu") if kind == "codes" else (), separate=kind == "separate")
        else:
            m2m100(folder)
        return load_tokenizer(folder, family), CLASSES[family].from_pretrained(folder)
    if family == "bart":
        reference = bart_theirs(bart(folder))
    else:
        reference = theirs(family, published=kind != "json")
    if kind == "json":
        for path in folder.iterdir():
            path.unlink()
        reference.save_pretrained(folder)
    elif family in PLAIN:
        plain(family, folder)
    return load_tokenizer(folder, TYPES.get(family, family)), reference
