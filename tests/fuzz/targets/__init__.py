"""The targets of the fuzzers: each module makes intact files or requests, and changes them."""
