"""The one predictor of a load: requests under an engine's step rule, by arrays."""
