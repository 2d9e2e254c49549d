"""What a fitted model answers beyond predictions: why, how sure, what next, what if."""
