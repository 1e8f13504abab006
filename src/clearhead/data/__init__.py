"""Read texts, tables and data sets from files; batch and augment token ids."""
