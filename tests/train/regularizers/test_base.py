"""Order of the regularizers' hooks."""

import pytest

from clearhead.train.regularizers import REGULARIZERS, check_order


def test_regularizers_that_replace_the_loss_come_first_among_loss_hooks():
    names = [entry.name for entry in REGULARIZERS if entry.loss is not None]
    assert {entry.name for entry in REGULARIZERS if entry.replaces_loss} == {"label_smoothing", "r_drop"}
    assert names[:2] == ["label_smoothing", "r_drop"]
    with pytest.raises(ValueError, match="r_drop replaces the loss and drops the term of distillation; put it before"):
        check_order(REGULARIZERS[::-1])
