"""Every promise of the README and the documentation has a test, or a benchmark that measures it.

A promise is a tolerance, an invariance, a bound or a size. docs/promises.md has a row for each.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = "docs/promises.md"
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page != TABLE and "node_modules" not in page]

NUMBER = r"\$?\d(?:[\d.,]*\d)?"
AMOUNT = (
    rf"({NUMBER}|half|a (third|quarter)|two|three|four|five|six|seven|eight|nine|ten|twelve|a (hundred|thousand))\b"
)
PROMISE = re.compile(
    "|".join(
        (
            r"(?<!\d)\d(\.\d+)?e-\d+|10\^\{?-\d",  # tolerances
            rf"\bwithin ({NUMBER}|`[\w.]+`|one\b|{AMOUNT})|\bcosine (of )?{NUMBER}",
            rf"\bat (most|least)( {NUMBER})?|\b(more|less|fewer) than {AMOUNT}|\b(over|up to|under|below) {AMOUNT}",  # bounds
            rf"\b(in|after) {NUMBER} (s|seconds)\b|\bafter {NUMBER} failures\b",
            r"\b(never|always)\b",
            r"\b(bit|byte|token)-identical\b|\bidentical\b|\b(bit|byte|token|word) for (bit|byte|token|word)\b",  # sameness
            r"\bthe same (bits|bytes|tokens|order|results?|vectors?|embeddings|scores?|outputs|translations)\b",
            r"\b(gives|means?|computes?) the same\b|\b(is|are) the same\b",
            r"\bgives? the (bytes|results|tokens) of\b|\b(results|tokens|vectors|weights) are those of\b",
            r"\bequals?\b",
            r"\b(is|are) exact\b|\bexactly\b|\bexact( for the| integers|;|$)",
            r"\b(do|does) not (change|depend|grow|vary|affect)\b|\bunchanged\b|\bkeep their order\b",  # invariances
            rf"({NUMBER} times|twice|half) the memory\b|\bexceeds the memory\b|\b{NUMBER} \(?N(_layers)?\b[^.]*? bytes\b|\blarger than memory\b|\bgrows linearly\b",  # memory and sizes
            rf"\bof any size\b|\blimited to {AMOUNT}",
            rf"\bhave {NUMBER} seconds\b|\bloses? no\b|\b(falls?|loses?) (by )?{NUMBER}",
            r"\bdoes not delay\b|\bno client can\b|\b(is|are|stays?|remains?) flat\b|\bno \w+ is lost\b|\batomic(ally)?\b|\bnothing measurable\b",
            r"\bneither \w+ nor \w+ in memory\b|\bbytes of a\b",
            rf"\b{AMOUNT} ([kKMG]i?B(?!/)\b|bytes (per|a|an|for each)\b)|\bin {AMOUNT} bytes\b",
            r"\b(is|are|stays?|remains?) constant\b|\b(ha(s|ve) )?no (effect|influence)\b|\bindependent of\b|\bunaffected\b",
            r"\bdeterministic\b|\blossless\b|\breproduces the\b|\bgive the same\b",
            rf"\btolerance (is|of)\b|\b(deviates?|differs?) by (at most )?{NUMBER}|\b{AMOUNT} (digits|decimals)\b",
            rf"\b({AMOUNT} times|twice) (as (large|much)|that of|the (size|memory|weights|input))\b|\b{AMOUNT} as (large|much)\b",
            r"\bthe (maximum|minimum|limit)s? (is|are) \S+|\bin memory\b|\bare kept if\b",
            r"\b(with|in|for|on) (any|every|each) (number|size|length|precision|path|order|batch)\b",
            rf"\b{AMOUNT} bytes\b|\b(twice|{AMOUNT} times) as (fine|long|many|high|small)\b",
            r"\b(changes|renames|loses|opens|leaves|writes|has|have) no (setting|file|measurable)\b|\bno \w+ (renames|changes|deletes)\b",
            r"\bimmediately\b|\bno measurable\b|\bbefore its \w+ is\b",
            rf"\b(agrees?|is accurate) (up )?to ({NUMBER}(?!e)|{AMOUNT})|\bthe error (is|stays|has)\b|\bwithout (any )?loss\b|\binvariant\b|\bloses nothing\b",
            rf"\bpercentile of {NUMBER}|\bless than a \w*second\b",
            r"\bnothing that you\b|\bloads nothing\b|\bonly \w+ files are loaded\b|\b(prompts|defaults) are those of\b|\brefuses every\b|\bmay replace each other\b",
            rf"\b(lower a score by|/\d+ network|default of) {NUMBER}|\brows of {NUMBER} to {NUMBER}\b",
            r"\bno (more|less) \w+ than\b|\ban? (half|third|quarter|fifth|sixth|tenth) of the (\w+ )?(size|memory)\b|\bno extra memory\b",
            rf"\b{NUMBER} % (less|more|of the) memory\b|\bdrops? (by )?{NUMBER}|\b{NUMBER} (kilo|mega|giga)bytes\b|\bis bounded\b",
            r"\b(up to|within) rounding\b|\brelative error (is|of)\b|\bmatch(es)? those\b|\bdoes not matter\b|\bno difference\b",
            r"\bcannot (alter|change|affect)\b|\ball at once\b|\bnothing is (written|changed|stored)\b|\bkeeps \w+ and \w+ in float32\b",
        )
    ),
    re.IGNORECASE,
)

RESULTS = {
    "docs/performance-details.md": "results of the commands on the page",
    "docs/performance.md": "results of the commands on the page",
    "docs/recipe.md": "default values, compared with the code by test_recipe_reference.py",
    "docs/results.md": "results of the commands on the page",
    "docs/scaling.md": "results of the command on the page",
    "docs/speedrun.md": "results of the commands on the page",
}
"""Pages whose tables have no promises, and why. Their other sentences count, and tables with a column `bound`."""

NO_PROMISE = {
    "Requests that never fit.": "a heading: the sentence after it has the bound",
    "the smallest cosine of 301 texts": "a count of texts",
    "small values are never far below zero": "a reason: GELU is never below -0.17",
    "faster beyond ten million, not exact": "not exact",
    "Give at least one row padding": "advice",
    "BERT has 1e-12": "a setting of another library's models",
    "`eps`; 1e-5": "a default value",
    "paragraphs of up to 256 tokens": "the texts of a benchmark",
    "Within 0.2 BLEU with the paper's 8,000 updates, and equal": "the result of a training run",
    "The sign is the same for every seed": "the result of a training run",
    "The goal here is the same BLEU": "a goal",
    "in at most a quarter of the time": "a goal",
    "equal line numbers belong together": "a file format",
    "the page is ready after 1.6 s": "the result of the command on the page",
    "Rounds differed mostly by less than 10 %": "the result of the command on the page",
    "Python alone starts in 0.011 s": "a measurement of Python",
    "and nothing measurable in 8 bits": "the result of the command on the page",
    "Under ten times the load": "the load of a benchmark",
    "of fewer than 40 characters": "the texts of a measurement",
    "A change in BLEU below 2 with one seed may be chance": "advice",
    "for twice the memory of the cache": "the result of the command on the page",
    "exit status 0 after 14 s": "the result of the command on the page",
    "A few columns of the activations are ten times as large": "a property of models",
    "BM25 counts the words of all documents in memory": "how the search works",
    "a line without end is held in memory": "a known limit",
    "made no measurable difference on captions": "the result of the command on the page",
    "eight times the sentences take 1.2 times as long": "the result of the command on the page",
    "an update with R-Drop takes 2.1 times as long": "the result of the command on the page",
    "with a student of a quarter of the size": "the result of a training run",
    "loses 0.1 BLEU": "the result of `clearhead evaluate translation`",
    "BLEU falls by 0.02 and chrF by 0.18": "the result of `clearhead evaluate translation`",
    "BLEU and chrF move by 0.07 at most": "the result of `clearhead evaluate translation`",
    "took 1.15 times the memory": "a measurement of a change that was not kept",
    "could save 9 % and 2 % at most": "a measurement of a change that was not made",
    "depends on the padding by up to 3e-6": "a measurement of a kernel that is not used for it",
    "differ by 1e-6 from vectors computed in float64": "a measurement",
    "the largest difference was 1.1e-6": "a measurement of a change that was not kept",
}
"""Parts of sentences that match and promise nothing, and why."""


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def sentences(page):
    """Yield the sentences of a page, without code and links. A row of a table is one sentence, with `;` between cells.

    A row that names its test is not a sentence: `test_named_tests_exist` checks it.
    """
    text = text_of(page)
    text = re.sub(r"^( *)```.*?^\1```$|<!--.*?-->|</?[a-z][^<>]*>", "\n", text, flags=re.M | re.S)
    text = re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)(\{[^}]*\})?", r"\1", text)
    header = ""
    for line in re.sub(r"(?<=\S)\n(?= *(?![|#]|[-*] |\d+\. )\S)", " ", text).splitlines():
        line = re.sub(r"^([-*]|\d+\.) +", "", re.sub(r" +", " ", line.strip()))
        if not line.startswith("|"):
            header = ""
            yield from re.split(r"(?<=[.!?:])\s+(?=[A-Z`*\"(])", line)
            continue
        header = header or line
        if (page not in RESULTS or "| bound |" in header) and "`tests/" not in line:
            yield "; ".join(cell.strip() for cell in line.strip("|").split(" | "))


def rows(text):
    """Yield (page, promise, tests) of each row of the table, whose headings are the pages."""
    page = None
    for line in text.splitlines():
        if line.startswith("## "):
            page = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith(("| promise ", "| ---")):
            promise, tests = line.strip("| ").split(" | ")
            yield page, promise, tests


def without_row(sentence, promises):
    """Return the promises of a sentence, such as "at most", that no row quotes."""
    covered = [span(sentence, promise) for promise in (*promises, *NO_PROMISE) if promise in sentence]
    return [
        match[0]
        for match in PROMISE.finditer(sentence)
        if not any(first <= match.start() and match.end() <= end for first, end in covered)
    ]


def span(sentence, part):
    start = sentence.index(part)
    return start, start + len(part)


@cache
def functions_in(path):
    """Return the names of the functions of a module."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def missing_tests(text):
    """Return the tests and benchmarks that a text names and that do not exist; `::test_name` is in the file before."""
    missing, path = [], None
    for name in re.findall(r"`((?:(?:tests|benchmarks)/[\w/.-]+\.py)?(?:::\w+)?)`", text):
        file, _, test = name.partition("::")
        path = file or path
        if name and (path is None or not (ROOT / path).is_file() or (test and test not in functions_in(path))):
            missing.append(name)
    return missing


ROWS = list(rows(text_of(TABLE)))


@pytest.mark.parametrize("page", PAGES)
def test_every_promise_has_a_row(page):
    promises = [promise for where, promise, _ in ROWS if where == page]
    missing = {sentence: found for sentence in sentences(page) if (found := without_row(sentence, promises))}
    assert missing == {}, f"add a row with the test of each promise to {TABLE}"


def test_every_row_quotes_a_promise_of_its_page():
    said = {page: list(sentences(page)) for page in PAGES}
    for page, promise, _ in ROWS:
        assert any(promise in sentence for sentence in said[page]), f"{page} does not have: {promise}"
        assert PROMISE.search(promise), f"{promise} does not match a pattern of a promise"
    everything = [sentence for page in PAGES for sentence in said[page]]
    for part in NO_PROMISE:
        assert any(part in sentence for sentence in everything), f"no page has: {part}"


@pytest.mark.parametrize("page", [*PAGES, TABLE])
def test_named_tests_exist(page):
    assert missing_tests(text_of(page)) == []


def test_every_row_names_a_test_or_a_benchmark():
    for _, promise, tests in ROWS:
        named = [name.strip("`") for name in tests.split(", ")]
        assert all(name.startswith("benchmarks/") or "::test_" in name for name in named), promise


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("The vectors agree to 1e-5.", ["1e-5"]),
        ("The file has 28 MB, and never more.", ["28 MB", "never"]),
        ("It is bit-identical, at most 4.5 times as large.", ["bit-identical", "at most 4.5"]),
        ("It keeps neither a nor b in memory, under two passes.", ["neither a nor b in memory", "under two"]),
        ("No client can delay it, of any size.", ["No client can", "of any size"]),
        ("It is closed after 10 s; less than 40 rows.", ["after 10 s", "less than 40"]),
        ("It equals the other one and does not depend on the order.", ["equals", "does not depend"]),
        ("It takes 4 bytes a parameter, and stays constant.", ["4 bytes a", "stays constant"]),
        ("It is deterministic, twice as large, in two bytes.", ["deterministic", "twice as large", "in two bytes"]),
        ("It deviates by 0.1 and is independent of the batch.", ["deviates by 0.1", "independent of"]),
        ("Results do not vary with the batch size, bit for bit.", ["do not vary", "bit for bit"]),
        ("Batching leaves them unchanged and has no influence on the order.", ["unchanged", "has no influence"]),
        ("Scores agree to five decimal places, within one percent.", ["agree to five", "within one"]),
        ("The error is 0.1 %, and the memory 1.5 times that of the weights.", ["The error is", "1.5 times that of"]),
        (
            "It is a quarter as large, stays flat, and no request is lost.",
            ["a quarter as large", "stays flat", "no request is lost"],
        ),
        ("It takes 40 % less memory, and its accuracy drops 0.3 points.", ["40 % less memory", "drops 0.3"]),
        ("Results agree up to rounding; the relative error is 0.001.", ["up to rounding", "relative error is"]),
        ("Vectors match those of the model, and the order does not matter.", ["match those", "does not matter"]),
        ("The file takes 28 megabytes, and padding makes no difference.", ["28 megabytes", "no difference"]),
        ("Batching cannot alter the output, and memory use is bounded.", ["cannot alter", "is bounded"]),
        ("They appear all at once, and nothing is written before.", ["all at once", "nothing is written"]),
        ("It takes the same tokenizer.", []),
        ("See the guide.", []),
    ],
)
def test_promises_are_found(sentence, found):
    assert without_row(sentence, []) == found
    assert without_row(sentence, [sentence]) == []


def test_second_promise_of_a_sentence_needs_a_row_too():
    assert without_row("It equals 3, and never 4.", ["It equals 3"]) == ["never"]


def test_missing_tests_are_found():
    here = "tests/docs/test_promises.py"
    assert missing_tests(f"`{here}::test_missing_tests_are_found`, `::test_named_tests_exist`, `{here}`") == []
    assert missing_tests(f"`{here}::test_no`, `::test_none`") == [f"{here}::test_no", "::test_none"]
    assert missing_tests("`tests/no.py`, `benchmarks/no.py`, `::test_no`") == [
        "tests/no.py",
        "benchmarks/no.py",
        "::test_no",
    ]
