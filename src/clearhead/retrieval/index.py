"""An index of texts and their vectors on disk, with exact search."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast, overload

from numpy.typing import NDArray

from clearhead.data.corpus import Corpus
from clearhead.pipelines.reranker import Reranker
from clearhead.pipelines.text_encoder import TextEncoder
from clearhead.retrieval import build, canaries, identity
from clearhead.retrieval.approximate import open_graph, search_graph
from clearhead.retrieval.build import BuildOptions, ListedTexts
from clearhead.retrieval.exact import QueryVectors, TopRows, check_count, query_vectors, search_exact
from clearhead.retrieval.export import export_index
from clearhead.retrieval.files import StoredRows
from clearhead.retrieval.lexical import LexicalIndex, fuse
from clearhead.retrieval.manifest import Dtype, Manifest, read_manifest
from clearhead.runtime.vectors import EncodeOptions, Vectors
from clearhead.tokenizers.base import Tokens, as_texts, check_not_blank, iterate_texts

CANDIDATES = 100
"""Number of documents that are ranked again, and of each ranking that is fused."""


@dataclass(frozen=True)
class SearchResult:
    """A document that a search found.

    Args:
        index: number of the document in the index, from 0.
        score: its score: the dot product with the query, which is the cosine if vectors are normalized.
        text: the document.
        columns: the other columns that are kept with it.

    >>> from clearhead import SearchResult
    >>> SearchResult(0, 0.98, "It rains.").text
    'It rains.'
    """

    index: int
    score: float
    text: str
    columns: dict[str, Any] = field(default_factory=dict)


class Index:
    """Texts with their vectors in a folder, and exact search among them.

    Equation: top-k of q · x_i over all documents i

    The vectors stay on disk. Results do not depend on the kernels of the processor: the best documents are computed in
    float64.

    Args:
        folder: the index, which `Index.build` or `clearhead index` wrote.
        encoder: the model that made it; None to load it when the first text is searched. If queries have another
            adapter than documents, it may have either one.
        precision, device: as in `TextEncoder`, for a model that is loaded; None for the precision of the index.

    Raises:
        ValueError: the folder is not an index, is of another version or is cut short; another model made it.

    >>> import tempfile; from clearhead import Index, TextEncoder
    >>> folder = tempfile.mkdtemp() + "/my-index"
    >>> index = Index.build(TextEncoder.from_pretrained(), ["The bridge is closed.", "It rains."], folder)
    >>> index.search("How is the weather?", top_k=1)[0].text
    'It rains.'
    """

    def __init__(
        self,
        folder: str | Path,
        encoder: TextEncoder | None = None,
        *,
        precision: str | None = None,
        device: str = "auto",
    ) -> None:
        self.folder, self.name = Path(folder), str(folder)
        self._precision, self._device = precision, device
        self._read()
        self._source: str | Path = self.manifest.encoder["model"]
        self._encoders = dict[bool, TextEncoder]()  # for queries with another adapter, and else
        if encoder is not None:
            self.use_encoder(encoder)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        encoder: TextEncoder | None = None,
        *,
        precision: str | None = None,
        device: str = "auto",
    ) -> "Index":
        """Open an index; arguments as in the class."""
        return cls(folder, encoder, precision=precision, device=device)

    @classmethod
    def build(
        cls,
        encoder: TextEncoder,
        texts: Iterable[str] | Corpus,
        folder: str | Path,
        *,
        columns: Mapping[str, Sequence[Any]] | None = None,
        dtype: Dtype = "int8",
        options: EncodeOptions | None = None,
        query_prompt: str | None = None,
        query_adapter: str | None = None,
        resume: bool = False,
        overwrite: bool = False,
    ) -> "Index":
        """Encode documents and write an index, which appears when it is complete.

        Args:
            encoder: the model.
            texts: the documents, or a `Corpus` of files of any size.
            folder: the index.
            columns: values of other columns to keep with each text, by name. A corpus has its own columns.
            dtype: dtype of the fast pass over all documents. "int8" keeps the float32 vectors next to the codes and
                finds the same documents as "float32"; "bfloat16" has half the size of float32, and rounded scores.
            options: arguments of `TextEncoder.encode` for documents. By default vectors are normalized, and get the
                model's prompt for documents, if it has one.
            query_prompt: name or text of the prompt of queries; None for the model's prompt for queries, if it has one.
            query_adapter: adapter of queries, which needs a second copy of the model; "" for none. None for
                "retrieval.query" if the encoder has the adapter "retrieval.passage", else for that of the encoder.
            resume: continue an interrupted run, if there is one.
            overwrite: discard an interrupted run, and replace an existing index.

        Raises:
            ValueError: the folder exists, another process writes it, or a document is blank or not a string.
        """
        build_options = BuildOptions(dtype, options or EncodeOptions(), query_prompt, query_adapter, resume, overwrite)
        build.build_index(encoder, _corpus(texts, columns), Path(folder), build_options, lambda *step: None)
        return cls(folder, encoder)

    def append(
        self,
        texts: Iterable[str] | Corpus,
        *,
        columns: Mapping[str, Sequence[Any]] | None = None,
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        """Append documents, which appear all at once when the last one is written.

        Args:
            texts, columns, resume: as in `build`. The columns are those of the index.
            overwrite: discard an interrupted append, which must exist. It never replaces the index.

        Raises:
            ValueError: as in `build`; the columns differ; with overwrite, there is no interrupted append.
        """
        options = BuildOptions(resume=resume, overwrite=overwrite)
        build.append_to_index(self.encoder, _corpus(texts, columns), self.folder, options, lambda *step: None)
        self._read()

    def __len__(self) -> int:
        """Return the number of documents."""
        return self.manifest.rows

    def __repr__(self) -> str:
        made_by = self.manifest.encoder
        return f"Index({str(self.folder)!r}, {len(self):,} documents, {self.manifest.dtype}, {made_by['model']!r})"

    @property
    def width(self) -> int:
        """Number of columns of a vector."""
        return self.manifest.width

    @property
    def stored_vectors(self) -> NDArray[Any]:
        """The stored vectors (n, d) as an array that is mapped into memory; bfloat16 values as uint16."""
        return self._stored.stored

    @property
    def encoder(self) -> TextEncoder:
        """The model that made the index. It is loaded when it is first used.

        Raises:
            ValueError: it cannot be loaded, or has changed.
        """
        return self._loaded(for_queries=False)

    @property
    def query_encoder(self) -> TextEncoder:
        """The model of queries: `encoder`, or the same model with another adapter.

        Raises:
            ValueError: as in `encoder`.
        """
        return self._loaded(for_queries=bool(self.manifest.encoder.get("query_encoder")))

    def _loaded(self, *, for_queries: bool) -> TextEncoder:
        if for_queries not in self._encoders:
            made_by = self.manifest.encoder["query_encoder"] if for_queries else self.manifest.encoder
            self.use_encoder(identity.load_encoder(self.folder, made_by, self._source, self._precision, self._device))
        return self._encoders[for_queries]

    def load_encoder(self, name: str | Path) -> None:
        """Load the model of queries from another place.

        Args:
            name: a folder or a Hub id.

        Raises:
            ValueError: it cannot be loaded, or is another model than the one that made the index.
        """
        self._source, self._encoders = name, {}
        self.query_encoder  # noqa: B018  # loads and checks it

    def use_encoder(self, encoder: TextEncoder) -> None:
        """Encode documents or queries with a model, after a check that it made the index.

        Args:
            encoder: the model. If queries have another adapter than documents, its adapter decides.

        Raises:
            OtherModelError: it did not, or gives the canary texts of the index other vectors; the message names the
                difference.
        """
        made_by = self.manifest.encoder
        of_queries = made_by.get("query_encoder")
        for_queries = of_queries is not None and identity.is_same_adapter(of_queries["adapter"], encoder.adapter)
        identity.check_same_model(self.folder, made_by["query_encoder"] if for_queries else made_by, encoder)
        canaries.check(self.folder, encoder, made_by, for_queries=for_queries)
        self._encoders[for_queries] = encoder

    @overload
    def search(  # type: ignore[overload-overlap]  # a string is an iterable of strings, too
        self,
        queries: str,
        top_k: int = 10,
        *,
        reranker: Reranker | None = None,
        candidates: int = CANDIDATES,
        hybrid: bool = False,
        approximate: bool = False,
    ) -> list[SearchResult]: ...
    @overload
    def search(
        self,
        queries: Iterable[str],
        top_k: int = 10,
        *,
        reranker: Reranker | None = None,
        candidates: int = CANDIDATES,
        hybrid: bool = False,
        approximate: bool = False,
    ) -> list[list[SearchResult]]: ...
    def search(
        self,
        queries: str | Iterable[str],
        top_k: int = 10,
        *,
        reranker: Reranker | None = None,
        candidates: int = CANDIDATES,
        hybrid: bool = False,
        approximate: bool = False,
    ) -> list[SearchResult] | list[list[SearchResult]]:
        """Return the documents with the highest scores for each query, highest first.

        Args:
            queries: a query, or several.
            top_k: number of documents.
            reranker: a cross-encoder that ranks the best documents again; None for none.
            candidates: number of documents that it ranks.
            hybrid: fuse the ranking of the vectors with one of the words (BM25) by their ranks.
            approximate: use a graph of neighbors instead of all vectors, for millions of documents.

        Returns:
            A list of results for one query; a list of such lists for several. Equal scores keep the order of the
            documents.

        Raises:
            ValueError: a query is blank, is not a string, or is longer than the model takes; top_k or candidates
                is not a whole number of at least 1; a package is missing; the reranker has several scores.
        """
        listed, single = as_texts(queries)
        top_k, candidates = check_count("top_k", top_k), check_count("candidates", candidates)
        if reranker is not None:
            reranker.check_ranks()
            for query in listed:
                reranker.check_query(query)
        count = top_k if reranker is None else max(top_k, candidates)
        vectors = self.encode_tokens(self.tokenize_queries(listed))
        found = self.search_vectors(vectors, max(count, CANDIDATES) if hybrid else count, approximate=approximate)
        results = []
        for number, (rows, scores) in enumerate(zip(found.rows, found.scores.tolist(), strict=True)):
            best = rows.tolist()
            if hybrid:
                best, scores = fuse([rows, self._lexical.search(listed[number], max(count, CANDIDATES))], count)
            results.append([self.result(row, score) for row, score in zip(best, scores, strict=True)])
        if reranker is not None:
            results = [self._rerank(reranker, *pair, top_k) for pair in zip(listed, results, strict=True)]
        return results[0] if single else results

    @staticmethod
    def _rerank(reranker: Reranker, query: str, results: list[SearchResult], top_k: int) -> list[SearchResult]:
        ranking = reranker.rank(query, [result.text for result in results], top_k=top_k) if results else []
        return [replace(results[one.index], score=one.score) for one in ranking]

    @cached_property
    def _lexical(self) -> LexicalIndex:
        return LexicalIndex(self._stored.document(row)["text"] for row in range(len(self)))

    def tokenize_queries(self, queries: Sequence[str]) -> list[Tokens]:
        """Return the tokens of queries, with the prompt of the index.

        Raises:
            ValueError: as in `search`.
        """
        name = "the query" if len(queries) == 1 else "query {}"
        for number, query in enumerate(queries):
            check_not_blank(query, name.format(number))
        options = identity.options_of(self.manifest.encoder, for_queries=True)
        tokens = self.query_encoder.tokenize(queries, max_length=options.max_length, prompt=options.prompt)
        for number, text in enumerate(tokens):
            if text.truncated:
                (whole,) = self.query_encoder.tokenizer.encode([(options.prompt or "") + queries[number]])
                raise ValueError(
                    f"{name.format(number)} has {len(whole.ids):,} tokens; expected at most {options.max_length}, the "
                    "maximum length of the index. Shorten it"
                )
        return tokens

    def encode_tokens(self, tokens: Sequence[Tokens]) -> Vectors:
        """Return the vectors (n, d) of tokenized queries, with the settings of the index."""
        options = identity.options_of(self.manifest.encoder, for_queries=True)
        return cast(Vectors, self.query_encoder.encode_tokens(tokens, options))

    def export(self, path: str | Path) -> None:
        """Write texts, columns and vectors in float32 to one file, atomically.

        Args:
            path: FILE.parquet, for DuckDB, LanceDB and other databases, or FILE.jsonl or FILE.npy.

        Raises:
            ValueError: an unknown extension, or a missing folder or package; another process writes the file.
        """
        export_index(self._stored, Path(path))

    def search_vectors(self, queries: QueryVectors, top_k: int = 10, *, approximate: bool = False) -> TopRows:
        """Return the rows with the largest dot products with each vector.

        Args:
            queries: vectors (n, d) of real numbers: an array, a tensor or a list.
            top_k: number of rows k.
            approximate: use a graph of neighbors, which is made when it is first used.

        Returns:
            Rows and scores (n, k), best first; fewer if the index has fewer documents.

        Raises:
            ValueError: vectors of another width, of complex numbers, with NaN or infinity, or too large for products
                in float32; top_k is not a whole number of at least 1.
        """
        top_k = check_count("top_k", top_k)
        vectors = query_vectors(queries, self.width)
        if approximate and len(self):
            return search_graph(open_graph(self.folder, self._stored), self._stored, vectors, top_k)
        return search_exact(self._stored, vectors, top_k)

    def result(self, row: int, score: float) -> SearchResult:
        """Return the document of a row as a result."""
        document = self._stored.document(row)
        return SearchResult(row, score, document.pop("text"), document)

    def _read(self) -> None:
        self.manifest: Manifest = read_manifest(self.folder)
        self._stored = StoredRows(self.folder, self.manifest)
        self.__dict__.pop("_lexical", None)


def _corpus(texts: Iterable[object] | Corpus, columns: Mapping[str, Sequence[Any]] | None) -> Corpus:
    if isinstance(texts, Corpus):
        if columns:
            raise ValueError("a corpus has its own columns; name them in Corpus(keep=...)")
        return texts
    return ListedTexts(list(iterate_texts(texts, "document")), dict(columns or {}))
