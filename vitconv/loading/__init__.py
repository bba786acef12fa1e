"""From a checkpoint to something that runs: a ready module, and an optimizer that goes on where it stopped."""
