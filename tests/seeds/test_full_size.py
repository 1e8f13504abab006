"""T4.1: the full-size encoder and its trace."""

import pytest
import torch

from clearhead import Encoder, trace


@pytest.mark.slow
def test_the_full_size_encoder_and_its_trace():
    torch.manual_seed(0)
    encoder = Encoder(512, 2048, 8, 0.1, 5)
    x = torch.randn(30, 200, 512)
    with torch.no_grad():
        result = trace(encoder, x)
    assert result.output.shape == (30, 200, 512)
    assert len(result.steps) == 5 * 18
    for number in range(5):
        layer = [step for step in result.steps if step.path.startswith(f"layers.{number}.")]
        sizes = [[size for _, size in step.shape] for step in layer]
        assert sizes[:8] == [
            [30, 200, 1536],
            [30, 8, 200, 64],
            [30, 8, 200, 200],
            [30, 8, 200, 200],
            [30, 8, 200, 200],
            [30, 8, 200, 64],
            [30, 200, 512],
            [30, 200, 512],
        ]
        assert sizes[11] == [30, 200, 2048]
        assert sizes[-1] == [30, 200, 512]
