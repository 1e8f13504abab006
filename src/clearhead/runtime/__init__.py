"""Run models: device, precision, inference copies, packed batches and streams."""
