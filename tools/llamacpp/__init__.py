"""llama.cpp beside the engine: its published libraries, on the same weights and cores."""
