"""What passes between the stages, as files: profiles, traces, plans, timelines, reports. No torch here."""
