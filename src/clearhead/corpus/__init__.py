"""Encode files of any size, on one machine or a Ray cluster."""
