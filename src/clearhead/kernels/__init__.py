"""Fast forms of the equations for the processor at hand; `equations` is their oracle."""
