"""The search of one request's plan: options, bounds, simulations, and the choice with its certainty."""
