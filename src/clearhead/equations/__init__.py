"""Pure functions without parameters: one equation of the paper a file.

Every function states its formula once, in a docstring line that begins with ``Equation:``.
`equation_of` reads that line, so that whoever shows a formula (the trace, the documents' tests) shows this one.

Shape letters, as suffixes of names (``q_BHLK``): B batch, L query positions, M key positions, D model width
(d_model), H heads, K width of a head (d_k), V width of a head's values (d_v), F hidden width of the feed-forward.
"""


def equation_of(thing: object) -> str:
    """The formula that a function or class states in its docstring, or "" where it states none.

    >>> from clearhead.equations import equation_of, attention
    >>> equation_of(attention.scores)
    'S = Q Kᵀ / √d_k'
    """
    for line in (thing.__doc__ or "").splitlines():
        head, found, formula = line.strip().partition("Equation: ")
        if found and not head:
            return formula
    return ""
