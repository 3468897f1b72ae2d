"""Operations: their measured latencies, what a forward consists of, and profiles composed of both."""
