"""Text from a model: the key–value cache, sampling, the decode loop, and public checkpoints."""
