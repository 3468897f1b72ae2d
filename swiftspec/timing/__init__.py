"""Times as data: latencies with their parts and provenance, tables of steps, and timelines. No torch here."""
