"""Figure 1 joined: models that take token ids, built from a frozen config."""
