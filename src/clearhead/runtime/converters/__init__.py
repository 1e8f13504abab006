"""Converters of linear layers for inference, one file per kind of kernel; `runtime/precision.py` lists them."""
