"""Fast implementations of the equations; each is tested against `equations`, its oracle."""
