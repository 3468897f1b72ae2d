"""The engine's processes on one machine: started by a fork server, placed on devices, watched, restarted."""
