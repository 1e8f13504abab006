"""One module per checkpoint family, which registers it; the registry imports every module of this package."""
