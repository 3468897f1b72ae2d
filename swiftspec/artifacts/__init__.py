"""Files passed between the stages: profiles, traces, plans, timelines, reports. No torch here."""
