"""Tell English from German, by the frequencies of three letters in a row."""

import re
from collections.abc import Iterator

# `python tools/learn_language.py train.en train.de` learns these n-grams from the Tatoeba pairs. The number before them
# is their weight: the logarithm of how much more frequent they are than in the other language. "_" is a word's edge.
_ENGLISH = {
    6: (
        "'d_ 'll 'm_ 're 't_ 've _a_ _by _ca _ea _i' _i_ _if _my _ou _th _up _wh _yo an' any at' ave ays bou "
        "can car con day did dn' do_ doe ead eas ect eed ery esn ght goo hav he' hou how hy_ i'l i'm i'v idn "
        "it' jus ked lea liv lly loo lp_ ly_ my_ n't nev now ny_ oes oin on' ood ou' ou_ oug oul out ow_ own "
        "say sed sh_ sn' ted th_ too u'r ve_ way we' we_ wha whe who why wn_ wou yin you yth"
    ),
    5: (
        "_ev _it _sh _us abo ain ay_ e's ed_ enc eve goi hap his ice if_ igh ith ned ok_ ook our ree she sho "
        "tha the up_"
    ),
    4: (
        "_as _at _co _go _on ake ce_ com cou don dy_ ear eat ey_ go_ hey ish kno lik not of_ ome ong oth oun "
        "ous ove ple rea t's thi ugh"
    ),
    3: "'s_ _do _fo _kn _lo _of ad_ for him ike ime is_ ive me_ one ot_ som to_ wit",
    2: "_he _ho ant are ary he_ hin id_ ing ke_ ng_ or_ re_ ry_ uld",
    1: "_li _no _to at_ hat her ld_ ll_ nt_ ut_",
}
_GERMAN = {
    6: (
        "_er _fü _hä _ih _kö _mö _mü _wu _wü _zu _üb abe agt ahr anz aru aub auf chl chs cht chw das dei du_ "
        "ehe ehr eht ei_ eib eic eid eiß enk etz eut für geb gef geg geh gew gt_ gte hm_ hne hr_ hst hät hör "
        "ieb ihn ihr iß_ kan kau kei kom kt_ kön lei llt mei mmt möc nen nn_ nnt och rau rsc rüc seh sei sst "
        "teh tet tzt uf_ von wie wir woh wur wür zei zt_ zu_ zur ß ä ätt ö öch önn ü übe ück ür_ ürd üss"
    ),
    5: "_et _ic _ka bis ebe eis gut hab iel nac sie twa",
    4: "_au _du _ei _es _ko _ze ben bin dem ein eit fen gel hau ich ie_ lte mic mir nic rei tig um_",
    3: "_ni _vo die ech ede enn gen hie hte ier ige mac mit mme ria sag sch uss wei",
    2: (
        "_da _de _ge _mi _sc _si ach ann ass aus ber ch_ che den der em_ en_ ern ges hen ht_ ine ir_ ist lic "
        "lle omm rde sen sic sse te_ ung war"
    ),
    1: "_bi _di _un _wi de_ er_ in_ nde ss_ st_ ten",
}
_GREETINGS = {
    "en": "yes hello hi thanks thank please goodbye bye sorry",
    "de": "ja hallo danke bitte tschüss nein gruß",
}
"""Texts of one word, too short for n-grams."""

_WEIGHTS = {ngram: weight for weight, ngrams in _ENGLISH.items() for ngram in ngrams.split()}
_WEIGHTS |= {ngram: -weight for weight, ngrams in _GERMAN.items() for ngram in ngrams.split()}
_WEIGHTS |= {f"_{word}_": 6 for word in _GREETINGS["en"].split()}
_WEIGHTS |= {f"_{word}_": -6 for word in _GREETINGS["de"].split()}

_CLEAR = 0.4
"""Smallest average weight of the n-grams of a text that is clearly in one language."""

_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")


def detect_language(text: str) -> tuple[str, bool]:
    """Return the language of a text, "en" or "de", and whether it is clear.

    Short texts in other languages can look clear, too.

    >>> from clearhead.pipelines.seq2seq.language_detection import detect_language
    >>> detect_language("Where is the station?"), detect_language("Das Wetter ist schön."), detect_language("12 345")
    (('en', True), ('de', True), ('en', False))
    """
    weights = [_WEIGHTS.get(ngram, 0) for ngram in (*ngrams(text), *_words(text))]
    total = sum(weights)
    return "de" if total < 0 else "en", abs(total) >= _CLEAR * max(1, len(weights))


def ngrams(text: str) -> Iterator[str]:
    """Yield three letters in a row of each word and its edges, and the letters that only German has.

    >>> list(ngrams("Für 3"))
    ['_fü', 'für', 'ür_', 'ü']
    """
    for marked in _words(text):
        yield from (marked[start : start + 3] for start in range(len(marked) - 2))
        yield from (letter for letter in marked if letter in "äöüß")


def _words(text: str) -> list[str]:
    return [f"_{word}_" for word in _WORD.findall(text.lower().replace("’", "'"))]
