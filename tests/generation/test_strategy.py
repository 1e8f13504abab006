"""A search strategy is one registered class, chosen by the config."""

import pytest

from clearhead import GenerationConfig
from clearhead.generation import beam, generate, greedy, sampling, strategy
from clearhead.generation.beam import BeamSearch
from clearhead.generation.greedy import GreedySearch
from clearhead.generation.sampling import Sampling
from clearhead.generation.strategy import register_strategy, strategy_for


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"beam_size": 1}, GreedySearch),
        ({"beam_size": 4}, BeamSearch),
        ({"beam_size": 1, "do_sample": True, "num_return_sequences": 3}, Sampling),
    ],
)
def test_config_chooses_strategy(options, expected):
    assert {greedy, beam, sampling} <= set(generate.STRATEGIES)
    config = GenerationConfig(**options)
    assert isinstance(strategy_for(config), expected)
    assert strategy_for(config).rows_per_source(config) == max(options.values())


def test_registered_strategy_is_used(monkeypatch):
    class LongOutputs(GreedySearch):
        def supports(self, config):
            return config.beam_size == 1 and config.min_length > 1000

    monkeypatch.setattr(strategy, "_registry", [])
    with pytest.raises(ValueError, match="no search strategy supports"):
        strategy_for(GenerationConfig(beam_size=1))
    register_strategy(LongOutputs())
    register_strategy(GreedySearch())
    assert type(strategy_for(GenerationConfig(beam_size=1))) is GreedySearch
    assert type(strategy_for(GenerationConfig(beam_size=1, min_length=2000))) is LongOutputs
