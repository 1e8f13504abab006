"""Training tasks, one file per task: write its `TaskEntry` and add it to `registry.TASKS`."""
