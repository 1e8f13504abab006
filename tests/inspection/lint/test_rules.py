"""Rules of the linter register themselves and have stable ids."""

import re
from pathlib import Path

import pytest
import torch
from support.lint.examples import ATTENDED, INVERTED, KEEP

from clearhead import lint_masks
from clearhead.inspection.lint import rule as registry
from clearhead.inspection.lint.rule import Match, Rule, Stage, first_finding
from clearhead.inspection.lint.rules import load_rules

ROOT = Path(__file__).parents[3]


@pytest.fixture
def checks(monkeypatch):
    """A copy of the registry that the test may change."""
    load_rules()
    copy = list(registry._checks)
    monkeypatch.setattr(registry, "_checks", copy)
    return copy


def test_every_rule_has_id_and_texts(checks):
    rules = {registered.rule for registered in checks}
    assert len({rule.id for rule in rules}) == len(rules) >= 16
    for rule in rules:
        assert re.fullmatch(r"[a-z]+(-[a-z]+)+", rule.id)
        assert rule.title
        assert rule.explanation.endswith((".", ")"))
        assert rule.fix.endswith((".", ")"))


def test_guide_lists_every_rule(checks):
    guide = (ROOT / "docs/guides/see.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", "".join(re.findall(r"^\|.*", guide, re.MULTILINE))))
    assert {registered.rule.id for registered in checks} - listed == set(), "add the rules to the table of see.md"


def test_hidden_rules_exist(checks):
    ids = {registered.rule.id for registered in checks}
    assert {name for registered in checks for name in registered.hides} <= ids


def test_new_rule_runs_without_further_changes(checks):
    rule = Rule("large-batch", "the batch is large", "More than two texts are slow.", "Use fewer texts.")
    rule.check(Stage.ATTENTION, order=1)(lambda pattern: Match("the mask") if len(pattern.keep_BM) > 2 else None)
    assert [finding.rule for finding in lint_masks(~KEEP[:, None, None], KEEP)] == ["large-batch"]
    assert [finding.rule for finding in lint_masks(~KEEP[1:, None, None], KEEP[1:])] == [INVERTED]


def test_refuses_second_rule_of_same_id(checks):
    with pytest.raises(ValueError, match=f"Another rule has the id '{ATTENDED}'"):
        Rule(ATTENDED, "", "", "").check(Stage.ATTENTION, order=1)(lambda pattern: None)


def test_match_may_replace_fix(checks):
    rule = Rule("any-tensor", "a tensor", "It is a tensor.", "Use none.")
    rule.check(Stage.FLOAT_MASK, order=0)(lambda mask: Match("here", "It has 3 elements.", "Use a list."))
    (finding,) = first_finding(Stage.FLOAT_MASK, torch.zeros(3))
    assert str(finding) == "any-tensor (here): It has 3 elements. It is a tensor. Use a list."
