"""Equations as MathML: well-formed and complete."""

import importlib
import pkgutil
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

import clearhead
from clearhead.equations import equation_of
from clearhead.inspection.report.mathml import mathml


def equations():
    elements = set()
    for module in pkgutil.walk_packages(clearhead.__path__, "clearhead."):
        for thing in vars(importlib.import_module(module.name)).values():
            if callable(thing) and getattr(thing, "__module__", "").startswith("clearhead") and equation_of(thing):
                elements.add(equation_of(thing))
    return sorted(elements)


def letters(text):
    plain = text.translate(str.maketrans("ᵀ²³ⁿᵗ¹⁻₀₁₂₃₄½", "T23nt1−012341"))
    return sorted(re.findall(r"[^\W_]", plain))


@pytest.mark.parametrize("equation", equations())
def test_every_equation_of_the_code_is_well_formed_and_whole(equation):
    root = ET.fromstring(mathml(equation).replace("&#160;", " "))
    assert root.tag == "math"
    text_content = "".join(root.itertext())
    assert letters(text_content.replace("12", "½", equation.count("½"))) == letters(equation)


@given(st.text(max_size=30))
def test_any_text_gives_well_formed_mathml(text):
    printable = "".join(letter for letter in text if letter.isprintable())
    ET.fromstring(mathml(printable).replace("&#160;", " "))


def test_scripts_roots_and_sums_are_in_the_right_place():
    assert "<msqrt><msub><mi>d</mi><mi>k</mi></msub></msqrt>" in mathml("S = Q Kᵀ / √d_k")
    assert "<msup><mi>K</mi><mi>T</mi></msup>" in mathml("S = Q Kᵀ / √d_k")
    assert "<munder><mo>Σ</mo>" in mathml("Σ_m exp(S′_im)")
    assert '<mi mathvariant="normal">QKV</mi>' in mathml("X W_QKV")


@pytest.mark.parametrize(
    ("equation", "above", "below"),
    [
        ("S = Q Kᵀ / √d_k", "QKT", "dk"),
        ("A_ij = exp(S′_ij) / Σ_m exp(S′_im)", "exp(Sij′)", "Σmexp(Sim′)"),
        ("LN(x) = γ ⊙ (x − μ) / √(σ² + ε) + β", "x−μ", "σ2+ε"),
        ("p = softmax(teacher / T)", "teacher", "T"),
        ("then (n − s) / (n − w) down to 0", "n−s", "n−w"),
        ("P = |s ∩ r| / |s|", "|s∩r|", "|s|"),
        ("L = Σ_n ‖h_n − g_n‖² / D", "Σn‖hn−gn‖2", "D"),
    ],
)
def test_fraction_has_the_correct_numerator_and_denominator(equation, above, below):
    root = ET.fromstring(mathml(equation).replace("&#160;", ""))
    (fraction,) = root.iter("mfrac")
    assert ["".join(part.itertext()) for part in fraction] == [above, below]


def test_text_without_a_fraction_is_unchanged():
    assert "mfrac" not in mathml("10000^(2j/d)")
    assert "mfrac" not in mathml("/ x")
    assert mathml("KL(p ‖ r)").count("<mo>‖</mo>") == 1
