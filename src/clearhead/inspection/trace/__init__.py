"""Every step of a forward pass, recorded from outside."""
