"""The command `clearhead`: one file a verb, each thin. torch is imported by the verb that needs it."""
