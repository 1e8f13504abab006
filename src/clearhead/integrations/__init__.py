"""Interfaces of other frameworks. A module imports its framework, and no other module imports it."""
