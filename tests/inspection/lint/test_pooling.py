"""lint() reports padding in pooled vectors and scores."""

import pytest
import torch
import transformers
from support.lint.examples import BERT, IDS, KEEP, LEAKS, MASK, PAD, MeanOfTheirs, encoder
from support.lint.torch_nn import Pooled, Prefixed
from torch import nn

from clearhead import lint, masks


def test_pooling_first_token_with_left_padding():
    left = KEEP.flip(1)
    batch = {"input_ids": torch.where(left, IDS.flip(1), PAD), "attention_mask": left.long()}
    (finding,) = lint(transformers.BertForSequenceClassification(BERT), batch)
    assert (finding.rule, finding.where) == (LEAKS, "pooling, row 1, position 0")
    assert finding.fix == "Use the first real token, or pad on the right."
    (finding,) = lint(MeanOfTheirs(transformers.BertModel(BERT)), batch)
    assert "Pool with the mask" in finding.fix


class StatesAndPooled(nn.Module):
    """States, and a pooled vector with or without padding, in several forms of output."""

    def __init__(self, form, leaks):
        super().__init__()
        self.encoder, self.head, self.form, self.leaks = encoder(), nn.Linear(8, 1), form, leaks

    def forward(self, ids):
        keep = ids != PAD
        states = self.encoder(ids, masks.padding(keep))
        real = torch.ones_like(keep)[..., None] if self.leaks else keep[..., None]
        pooled = (states * real).sum(dim=1) / real.sum(dim=1)
        mapping = {"states": states, "pooled": pooled}
        return {"tuple": (states, pooled), "mapping": mapping, "score": self.head(pooled)[:, 0]}[self.form]


@pytest.mark.parametrize("leaks", [True, False])
@pytest.mark.parametrize("form", ["tuple", "mapping", "score"])
def test_pooled_vectors_next_to_states_and_as_scores(form, leaks):
    findings = lint(StatesAndPooled(form, leaks), {"ids": IDS})
    assert [finding.rule for finding in findings] == (["pooled-padding"] if leaks else [])


@pytest.mark.parametrize("pool", ["a divisor that counts padding", "a maximum over zeros"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("embed", ["module", "function"])
def test_reports_counted_padding_without_gradient(pool, first, embed):
    (finding,) = lint(Pooled(pool, first, embed), {"src": IDS})
    assert (finding.rule, finding.where) == (LEAKS, "pooling, row 2")
    assert "Divide by the number of real tokens" in finding.fix
    assert lint(Pooled(pool, first, embed), {"src": IDS[:, :2]}) == []  # no padding in this batch


def test_reports_counted_padding_with_any_mask():
    class MeanWithPadding(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = encoder()

        def forward(self, ids, mask):
            states = self.body(ids, mask)
            return (states * (ids != PAD)[..., None]).mean(dim=1)

    for mask in (MASK, KEEP[:, None, None], torch.where(KEEP[:, None, None], 0.0, -torch.inf)):
        assert [finding.rule for finding in lint(MeanWithPadding(), {"ids": IDS, "mask": mask})] == [LEAKS]


def test_reports_counted_padding_in_square_batch():
    ids = IDS[[0, 1, 2, 0, 1, 2]]
    findings = lint(Pooled("a divisor that counts padding", True, "module"), {"src": ids})
    assert [finding.rule for finding in findings] == [LEAKS]
    assert lint(Pooled("a mean", True, "module"), {"src": ids}) == []


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_model_that_prepends_a_token(pool):
    assert lint(Prefixed(pool), {"ids": IDS}) == []
    (finding,) = lint(Prefixed(pool, mask_padding=False), {"ids": IDS})
    assert finding.rule == LEAKS
    assert "for all positions" in finding.fix
    with pytest.raises(ValueError, match="7 vectors for each text, but the source has 6"):
        lint(Prefixed("none"), {"ids": IDS})
