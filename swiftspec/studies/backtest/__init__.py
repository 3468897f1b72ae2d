"""Predictions of published results from published inputs."""
