"""What every package may use: errors, files, trees, log."""
