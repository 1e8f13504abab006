"""Rules of the linter, their registration, and the findings that they report."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any


@dataclass(frozen=True)
class Finding:
    """A mistake that the linter found.

    Args:
        rule: id of the rule, such as "padding-attended"; ids are stable.
        title: the mistake in a few words.
        where: the attention, the row of the batch and the positions; or a weight, an input or a file.
        evidence: measured facts of this case; "" if `where` is enough.
        explanation: the effect of the mistake.
        fix: how to correct it.

    >>> from clearhead import Finding
    >>> print(Finding("text-ignored", "text is ignored", "row 1", "", "A token has no effect.", "Check the mask."))
    text-ignored (row 1): A token has no effect. Check the mask.
    """

    rule: str
    title: str
    where: str
    evidence: str
    explanation: str
    fix: str

    def __str__(self) -> str:
        return f"{self.rule} ({self.where}): " + " ".join(filter(None, (self.evidence, self.explanation, self.fix)))


class Stage(Enum):
    """Step of the linter at which a check runs; it sets the argument of the check.

    Stages run in this order. In each stage, only the first check that matches reports a finding.
    """

    VALUES = auto()
    """Receives an `Observation` that has NaN or infinity."""
    ATTENTION = auto()
    """Receives an `AttentionPattern`: the keys that each query reaches, of one attention at a time."""
    MASKS = auto()
    """Receives an `Observation`; its findings replace those of their consequences."""
    FLOAT_MASK = auto()
    """Receives a `FloatMask` of the batch; its finding replaces that of its consequence."""
    TOKENS = auto()
    """Receives an `Observation` if the stages before found nothing."""
    POOLING = auto()
    """Receives an `Observation` with a pooled vector if the stages before found nothing."""
    CHECKPOINT = auto()
    """Receives the `PaddingIds` of a checkpoint."""


@dataclass(frozen=True)
class Match:
    """A match of a rule.

    Args:
        where, evidence: as in `Finding`.
        fix: a fix for this case, in place of the rule's.
    """

    where: str
    evidence: str = ""
    fix: str = ""


Check = Callable[[Any], Match | None]


@dataclass(frozen=True)
class Rule:
    """A kind of mistake, with checks that recognize it.

    Write a rule in a file of `clearhead.inspection.lint.rules`, which is imported without further registration.

    Args:
        id: stable name in kebab case.
        title, explanation, fix: as in `Finding`.

    >>> from clearhead.inspection.lint.rule import Match, Rule, Stage, first_finding
    >>> rule = Rule("large-padding-id", "the padding id is large", "Ids above 100 are words here.", "Set it to 0.")
    >>> @rule.check(Stage.CHECKPOINT, order=99)  # doctest: +SKIP
    ... def padding_id_above_100(ids): return Match("config.json") if ids.model > 100 else None
    """

    id: str
    title: str
    explanation: str
    fix: str

    def check(self, stage: Stage, *, order: int, hides: Iterable[str] = ()) -> Callable[[Check], Check]:
        """Return a decorator that registers a check of this rule.

        Args:
            stage: the step at which the check runs.
            order: position among the checks of the stage. Causes run before their consequences.
            hides: ids of rules whose findings are consequences of this one, and are dropped.

        Raises:
            ValueError: another rule has the same id.
        """

        def register(check: Check) -> Check:
            if any(registered.rule.id == self.id and registered.rule is not self for registered in _checks):
                raise ValueError(f"Another rule has the id {self.id!r}.")
            _checks.append(_RegisteredCheck(stage, order, self, check, frozenset(hides)))
            _checks.sort(key=lambda registered: registered.order)
            return check

        return register

    def finding(self, match: Match) -> Finding:
        """Return the finding of a match."""
        return Finding(self.id, self.title, match.where, match.evidence, self.explanation, match.fix or self.fix)


@dataclass(frozen=True)
class _RegisteredCheck:
    stage: Stage
    order: int
    rule: Rule
    check: Check
    hides: frozenset[str]


_checks: list[_RegisteredCheck] = []


def first_finding(stage: Stage, subject: object) -> list[Finding]:
    """Return the finding of the first check of a stage that matches, or an empty list.

    Args:
        stage: the step.
        subject: the argument of its checks.
    """
    for registered in _checks:
        if registered.stage is stage:
            match = registered.check(subject)
            if match is not None:
                return [registered.rule.finding(match)]
    return []


def without_consequences(findings: Iterable[Finding], causes: Iterable[Finding], stage: Stage) -> list[Finding]:
    """Return the findings that are not consequences of others.

    Args:
        findings: the findings to filter.
        causes: findings of a stage.
        stage: the stage that reported the causes.
    """
    rules = {finding.rule for finding in causes}
    hidden = {
        name
        for registered in _checks
        if registered.stage is stage and registered.rule.id in rules
        for name in registered.hides
    }
    return [finding for finding in findings if finding.rule not in hidden]
