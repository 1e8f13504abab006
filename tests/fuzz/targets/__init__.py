"""What is fuzzed: each module makes the intact files or requests of a target, and changes them."""
