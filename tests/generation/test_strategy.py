"""A search strategy is one class, chosen by the config."""

import pytest

from clearhead import GenerationConfig
from clearhead.generation import generate
from clearhead.generation.beam import BeamSearch
from clearhead.generation.generate import STRATEGIES, strategy_for
from clearhead.generation.greedy import GreedySearch
from clearhead.generation.sampling import Sampling


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"beam_size": 1}, GreedySearch),
        ({"beam_size": 4}, BeamSearch),
        ({"beam_size": 1, "do_sample": True, "num_return_sequences": 3}, Sampling),
    ],
)
def test_config_chooses_strategy(options, expected):
    config = GenerationConfig(**options)
    assert isinstance(strategy_for(config), expected)
    assert strategy_for(config).rows_per_source(config) == max(options.values())


def test_more_specific_strategy_comes_first(monkeypatch):
    class LongOutputs(GreedySearch):
        def supports(self, config):
            return config.beam_size == 1 and config.min_length > 1000

    monkeypatch.setattr(generate, "STRATEGIES", (LongOutputs(), *STRATEGIES))
    assert type(strategy_for(GenerationConfig(beam_size=1))) is GreedySearch
    assert type(strategy_for(GenerationConfig(beam_size=1, min_length=2000))) is LongOutputs
