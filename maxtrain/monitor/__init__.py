"""What a run tells about itself: metrics, events, held-out results, progress, and the record read back from them."""
