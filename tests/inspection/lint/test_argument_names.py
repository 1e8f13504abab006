"""lint() finds source and target under the usual names of arguments."""

import pytest
import torch
from torch import nn

from clearhead import lint

IDS, TARGET = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]]), torch.tensor([[1, 6, 7], [1, 9, 2]])


class Wrapper(nn.Module):
    """nn.Transformer on ids, with the arguments of the tutorial."""

    def __init__(self, causal):
        super().__init__()
        self.table = nn.Embedding(10, 8, padding_idx=0)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
        self.causal = causal

    def forward(self, source, target):
        padding = source == 0
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1]) if self.causal else None
        embedded = self.table(source), self.table(target)
        return self.transformer(*embedded, tgt_mask=mask, src_key_padding_mask=padding, memory_key_padding_mask=padding)


@pytest.mark.parametrize(("causal", "rules"), [(True, []), (False, ["future-visible"])])
def test_source_and_target(causal, rules):
    findings = lint(Wrapper(causal), {"source": IDS, "target": TARGET})
    assert [finding.rule for finding in findings] == rules


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, source_ids, target=None):
        return self.encoder(self.table(source_ids))


def test_labels_are_no_target():
    findings = lint(Classifier(), {"source_ids": IDS, "target": torch.tensor([0, 1])})
    assert [finding.rule for finding in findings] == ["padding-attended"]
