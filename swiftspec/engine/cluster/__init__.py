"""Several nodes as one machine: how they meet, what they may ask of each other, and the messages they exchange."""
