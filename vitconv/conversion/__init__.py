"""From a file in one layout to a file in another: open, detect, plan, stream, prove, report."""
