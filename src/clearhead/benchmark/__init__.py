"""Speed and memory, measured side by side: each contestant in a process of its own, round by round in turn."""
