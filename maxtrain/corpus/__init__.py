"""From text files to a tokenised dataset: `recipe`, tolerant reading in `records`, `build`, `summary`."""
