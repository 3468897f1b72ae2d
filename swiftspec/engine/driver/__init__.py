"""Engine's driver: runs the programs of all requests on one device group with real models and channels."""
