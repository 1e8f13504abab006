"""Pure functions without parameters, one equation of the paper in each file.

Every function states its formula once, in a docstring line that begins with ``Equation:``. `equation_of` reads that
line for all displays of a formula, such as the trace.

Shape letters, as suffixes of names (``q_BHLK``): B batch, L query positions, M key positions, D model width
(d_model), E width of the embeddings where it differs from D, H heads, K width of a head (d_k), V width of the values
of a head (d_v), F hidden width of the feed-forward network.
"""


def equation_of(documented: object) -> str:
    """Return the formula in the docstring of a function or class; "" if it has none.

    >>> from clearhead.equations import equation_of, attention
    >>> equation_of(attention.scores)
    'S = Q Kᵀ / √d_k'
    """
    for line in (documented.__doc__ or "").splitlines():
        before, marker, formula = line.strip().partition("Equation: ")
        if marker and not before:
            return formula
    return ""
